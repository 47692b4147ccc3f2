//! Ops over the slots of sequences beside the CPU's, bit for bit: outputs and states, in one piece and in several.

mod conv;
mod delta;
mod mamba;
mod slots;
mod ssd;
mod wkv;

use brigade_gpu::{Gpu, SpanMut};
use brigade_ops::ScanPart;

use crate::common::{Random, assert_same, gpu, on, values_of};

/// Runs parts on the CPU, over states and outputs.
type OnCpu<'a> = &'a dyn Fn(&[ScanPart], &mut [f32], &mut [f32]);
/// Runs parts on the GPU, over states and outputs.
type OnGpu<'a> = &'a dyn Fn(&Gpu, &[ScanPart], SpanMut<'_>, SpanMut<'_>);

/// An op with its operands.
struct Scan<'a> {
    name: &'a str,
    /// Values of a slot, and of a row of the output.
    per_slot: usize,
    width: usize,
    on_cpu: OnCpu<'a>,
    on_gpu: OnGpu<'a>,
}

/// Slots that there are.
const SLOTS: usize = 6;

/// Lengths, slots and positions of parts: one row, several blocks, some around a position where states are flushed.
const PARTS: [(usize, usize, usize); 5] =
    [(5, 4, 0), (1, 0, 63), (70, 5, 61), (0, 1, 7), (17, 2, 1 << 20)];

/// Parts of these lengths, slots and first positions. A row between each two belongs to none.
fn parts(of: &[(usize, usize, usize)]) -> Vec<ScanPart> {
    let mut first_row = 0;
    let part = |&(n_rows, slot, first_pos): &(usize, usize, usize)| {
        let part = ScanPart { from: slot, slot, first_pos, first_row, n_rows };
        first_row += n_rows + 1;
        part
    };
    of.iter().map(part).collect()
}

/// Rows that operands of these parts have.
fn n_rows(parts: &[ScanPart]) -> usize {
    parts.last().map_or(0, |part| part.first_row + part.n_rows + 1)
}

/// A part's rows before `cut` or from there on.
fn half(part: &ScanPart, cut: usize, second: bool) -> ScanPart {
    let ScanPart { slot, first_pos, first_row, n_rows, .. } = *part;
    if second {
        ScanPart {
            from: slot,
            slot,
            first_pos: first_pos + cut,
            first_row: first_row + cut,
            n_rows: n_rows - cut,
        }
    } else {
        ScanPart { n_rows: cut, ..*part }
    }
}

impl Scan<'_> {
    /// Runs the parts on the CPU, and on the GPU together, each alone, and in two pieces; then the same with states that are
    /// read in a slot that no part writes.
    fn check(&self, parts: &[ScanPart], states: &[f32]) {
        self.check_in(parts, states);
        let n_slots = states.len() / self.per_slot;
        let is_free = |slot: &usize| parts.iter().all(|part| part.slot != *slot);
        let from = (0..n_slots).find(is_free).expect("one slot is left for this");
        let elsewhere = |part: &ScanPart| match part.n_rows {
            0 => *part,
            _ => ScanPart { from, ..*part },
        };
        self.check_in(&parts.iter().map(elsewhere).collect::<Vec<_>>(), states);
    }

    fn check_in(&self, parts: &[ScanPart], states: &[f32]) {
        let Some(gpu) = gpu() else { return };
        let cuts = |second: bool| -> Vec<_> {
            parts.iter().map(|part| half(part, part.n_rows.div_ceil(3), second)).collect()
        };
        let alone: Vec<Vec<_>> = parts.iter().map(|part| vec![*part]).collect();
        let cpu = self.on_cpu(parts, states);
        let calls = [("together", vec![parts.to_vec()]), ("alone", alone)];
        for (how, calls) in calls.into_iter().chain([("in pieces", vec![cuts(false), cuts(true)])])
        {
            let (out, after) = self.on_gpu(&gpu, &calls, n_rows(parts), states);
            let name = format!("{} {how} of {:?}", self.name, parts.first().map(|part| part.from));
            assert_same(&format!("{name}: states"), &after, &cpu.1);
            assert_same(&format!("{name}: outputs"), &out, &cpu.0);
        }
    }

    /// [`Scan::check`] with [`PARTS`] from states of any values.
    fn check_all(&self, random: &mut Random) {
        self.check(&parts(&PARTS), &random.values(SLOTS * self.per_slot, 1.0));
    }

    fn on_cpu(&self, parts: &[ScanPart], states: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let mut states = states.to_vec();
        let mut out = vec![7.0; n_rows(parts) * self.width];
        (self.on_cpu)(parts, &mut states, &mut out);
        (out, states)
    }

    /// Runs the parts of some calls one after the other; outputs and states.
    fn on_gpu(
        &self,
        gpu: &Gpu,
        calls: &[Vec<ScanPart>],
        n_rows: usize,
        states: &[f32],
    ) -> (Vec<f32>, Vec<f32>) {
        let (mut states, mut out) = (on(gpu, states), on(gpu, &vec![7.0; n_rows * self.width]));
        for parts in calls {
            (self.on_gpu)(gpu, parts, states.span_mut(), out.span_mut());
        }
        (values_of(&out), values_of(&states))
    }
}

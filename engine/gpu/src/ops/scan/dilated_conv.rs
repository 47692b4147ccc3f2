//! Causal depthwise convolution with taps some rows apart. Its state is the rows before it, as they are.

use brigade_ops::{DilatedRows, ScanPart};
use brigade_shapes::DilatedConv;
use bytemuck::{Pod, Zeroable};

use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::{Span, SpanMut};
use crate::operands::OnGpu;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static CONV: Shader = shader!("dilated_conv");
static LAST: Shader = shader!("last_rows");

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    rows: u64,
    states: u64,
    x: u64,
    weight: u64,
    result: u64,
    n: u32,
    channels: u32,
    taps: u32,
    apart: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct PushLast {
    parts: u64,
    states: u64,
    x: u64,
    n: u32,
    channels: u32,
    kept: u32,
    pad: u32,
}

impl Gpu {
    /// Records the op [`DilatedRows`].
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn dilated_conv(&self, op: DilatedRows<'_, OnGpu>) {
        let DilatedRows { conv, parts, states, x, weight, out } = op;
        let weight = self.vector(weight);
        let DilatedConv { channels, taps, apart } = *conv;
        check(conv, parts, states.values(), x.values());
        assert_eq!(x.len(), out.len(), "dilated_conv: lengths");
        assert_eq!(weight.values(), taps * channels, "dilated_conv: weights");
        let of_part = |part: &ScanPart| {
            let ScanPart { from, first_row, n_rows, .. } = *part;
            let row = move |i: usize| [from, i, first_row, first_row + i].map(count);
            (0..n_rows).map(row)
        };
        let rows: Vec<[u32; 4]> = parts.iter().flat_map(of_part).collect();
        let n = rows.len() * channels;
        let push = Push {
            rows: self.upload(bytemuck::cast_slice(&rows)).address(),
            states: states.address(),
            x: x.address(),
            weight: weight.address(),
            result: out.address(),
            n: count(n),
            channels: count(channels),
            taps: count(taps),
            apart: count(apart),
        };
        // SAFETY: the kernel reads rows of `x` that are in one part with each of its rows, the rows of the parts' slots, and the
        // weights; it writes the parts' rows of `out`. All of them are there (checked).
        unsafe { self.dispatch(Order::After, &CONV, &[], &push, lines(n.div_ceil(256))) };
    }

    /// Leaves in the slots of `parts` what [`Gpu::dilated_conv`] reads of `x` behind them.
    ///
    /// # Panics
    /// As there.
    pub fn keep_last_rows(
        &self,
        conv: &DilatedConv,
        parts: &[ScanPart],
        states: SpanMut<'_>,
        x: Span<'_>,
    ) {
        let n_rows = check(conv, parts, states.values(), x.values());
        if n_rows == 0 || conv.n_before() == 0 {
            return;
        }
        let (parts, n) = self.upload_parts(parts.iter().copied());
        let n = n * conv.channels;
        let push = PushLast {
            parts,
            states: states.address(),
            x: x.address(),
            n: count(n),
            channels: count(conv.channels),
            kept: count(conv.n_before()),
            pad: 0,
        };
        // SAFETY: the kernel reads the parts' last rows of `x`, and reads and writes the rows of their slots, which are there
        // and which no two parts share (checked).
        unsafe { self.dispatch(Order::After, &LAST, &[], &push, lines(n.div_ceil(64))) };
    }
}

/// # Panics
/// If rows, states or weights are not of this shape. Returns how many rows there are.
fn check(shape: &DilatedConv, parts: &[ScanPart], states: usize, x: usize) -> usize {
    let DilatedConv { channels, taps, .. } = *shape;
    assert!(channels > 0 && taps > 0, "dilated_conv: {shape:?}");
    let (n_rows, per_slot) = (count(x) as usize / channels, shape.state_len());
    assert!(x.is_multiple_of(channels), "dilated_conv: rows of {channels}");
    let n_slots = states.checked_div(per_slot).unwrap_or(usize::MAX);
    ScanPart::check(parts, n_rows, n_slots, "dilated_conv");
    count(per_slot);
    n_rows
}

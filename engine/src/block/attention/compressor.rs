//! The compressor, which makes one row of the rows of several positions. Each position gives values and gates. A column
//! of the result is the mean of that column's values, weighted by a softmax of its gates over the positions. A gate
//! also has a part that depends only on the position's place in its entry. (DeepSeek-V4, section on compressed
//! attention.)
//!
//! Where entries overlap, a position gives twice as much: its first half goes into the entry after its own, its second half
//! into its own.

use std::ops::Range;

use crate::block::BlockCx;
use crate::block::linear::Linear;
use crate::device::{Device, Memory, Rows, Scratch};
use crate::kernels::Vector;
use crate::ops::{AddPicked, CopyParts, GatedRow, PoolGated, View};
use crate::spec::{EntriesSpec, ModelError};
use crate::state::PartRows;
use crate::weights::WeightLoader;

/// Weights of what makes entries of one kind.
pub(super) struct Compressor {
    spec: EntriesSpec,
    /// Elements of an entry.
    width: usize,
    /// `[input width, n_embd]`.
    values: Linear,
    /// `[input width, n_embd]`.
    gates: Linear,
    /// `[every, input width]`.
    gates_by_place: Vector,
    norm: Vector,
    eps: f32,
    /// Place of a sequence's last inputs in its slot.
    recent: Ring,
}

/// Values and gates of rows, each `[n, input width]`.
pub(super) struct Inputs {
    values: Rows,
    gates: Rows,
}

/// Rows of a sequence's last positions, in what it remembers of them.
#[derive(Clone, Copy)]
pub(super) struct Ring {
    /// Values before the first row.
    pub(super) start: usize,
    /// Rows: that of position `p` is number `p % n`.
    pub(super) n: usize,
    /// Values of a row.
    pub(super) width: usize,
}

/// Slots with the last positions of all sequences.
pub(super) struct Recent<'a> {
    /// `[n_slots, of_slot]`.
    pub(super) values: &'a mut Memory<f32>,
    pub(super) of_slot: usize,
}

/// The sizes of a compressor.
#[derive(Clone, Copy)]
pub(super) struct CompressorShape {
    pub(super) spec: EntriesSpec,
    /// Width of an entry.
    pub(super) width: usize,
    /// Epsilon of the entries' norm.
    pub(super) eps: f32,
    pub(super) n_embd: usize,
    /// Start of the compressor's values in a slot.
    pub(super) start: usize,
}

impl Ring {
    /// Behind the last row.
    pub(super) fn end(&self) -> usize {
        self.start + self.n * self.width
    }
}

impl Recent<'_> {
    /// Start of a position's row in the slot of a part's sequence. The position is of the part, or one of the last
    /// before it.
    pub(super) fn first(&self, ring: &Ring, part: &PartRows, pos: usize) -> usize {
        part.planes.to.0 as usize * self.of_slot + ring.start + pos % ring.n * ring.width
    }

    /// Keeps the rows of a ubatch, from value `first` of what is remembered of a position on.
    pub(super) fn keep(
        &mut self,
        device: &Device,
        ring: &Ring,
        first: usize,
        parts: &[PartRows],
        rows: &Rows,
    ) {
        let width = rows.cols();
        let mut places = Vec::new();
        for part in parts {
            let n = part.rows.len();
            for i in n.saturating_sub(ring.n)..n {
                let to = self.first(ring, part, part.pos as usize + i) + first;
                places.push([(part.rows.start + i) * width, to]);
            }
        }
        if !places.is_empty() {
            let (from, to) = (rows.view(), self.values.view_mut());
            device.run(CopyParts { from, to, width, places: &places });
        }
    }
}

/// The entries of a part's sequence that its rows complete.
pub(super) fn completed(part: &PartRows, every: usize) -> Range<usize> {
    let pos = part.pos as usize;
    pos / every..(pos + part.rows.len()) / every
}

impl Compressor {
    /// Loads `<stem>_kv`, `<stem>_gate`, `<stem>_ape` and `<stem>_norm`.
    pub(super) fn load(
        stem: &str,
        shape: CompressorShape,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let CompressorShape { spec, width, eps, n_embd, start } = shape;
        let name = |part: &str| format!("{stem}_{part}.weight");
        let n_input = spec.input_width(width);
        Ok(Self {
            values: Linear::matrix(loader, &name("kv"), n_input, n_embd)?,
            gates: Linear::matrix(loader, &name("gate"), n_input, n_embd)?,
            gates_by_place: loader.values(&name("ape"), &[n_input, spec.every])?,
            norm: loader.vector(&name("norm"), width)?,
            recent: Ring { start, n: spec.n_recent(), width: 2 * n_input },
            spec,
            width,
            eps,
        })
    }

    /// Behind what a sequence remembers for it.
    pub(super) fn end(&self) -> usize {
        self.recent.end()
    }

    /// The projections of a block's input to values and gates.
    pub(super) fn of_input(&self) -> [&Linear; 2] {
        [&self.values, &self.gates]
    }

    /// Finishes the projected rows: adds to the gates the part that depends on the place.
    pub(super) fn finish(&self, cx: &BlockCx<'_>, values: Rows, mut gates: Rows) -> Inputs {
        let every = self.spec.every;
        let places: Vec<u32> = cx.positions().map(|pos| pos % every as u32).collect();
        let d = gates.cols();
        let (out, table, picked) =
            (gates.view_mut(), self.gates_by_place.view(), View::Host(&places));
        cx.device.run(AddPicked { out, table, d, picked });
        Inputs { values, gates }
    }

    /// The entries that the rows complete, part by part, normed: `[n, width]`.
    pub(super) fn compress(
        &self,
        device: &Device,
        scratch: &Scratch,
        parts: &[PartRows],
        inputs: &Inputs,
        recent: &Recent<'_>,
    ) -> Rows {
        let mut pools = Vec::new();
        for part in parts {
            let entries = completed(part, self.spec.every);
            pools.extend(entries.map(|entry| self.pool_of(part, entry, inputs, recent)));
        }
        let mut made = scratch.take(pools.len(), self.width);
        device.run(PoolGated { pools, width: self.width, out: made.view_mut() });
        device.rms_norm_inplace(&mut made, &self.norm, self.eps);
        made
    }

    /// The rows that go into an entry, in the order of their positions.
    fn pool_of<'a>(
        &self,
        part: &PartRows,
        entry: usize,
        inputs: &'a Inputs,
        recent: &'a Recent<'_>,
    ) -> Vec<GatedRow<View<'a, f32>>> {
        let (every, width, n_input) = (self.spec.every, self.width, self.gates.rows());
        let start = entry * every;
        let first = if self.spec.overlaps { start.saturating_sub(every) } else { start };
        let row = |pos: usize| {
            // The last columns are for a position's own entry.
            let first = if pos < start { 0 } else { n_input - width };
            match pos.checked_sub(part.pos as usize) {
                Some(i) => {
                    let at = (part.rows.start + i) * n_input + first;
                    GatedRow { values: &inputs.values, gates: &inputs.gates }
                        .map(|rows| rows.view().part(at..at + width))
                }
                None => {
                    let at = recent.first(&self.recent, part, pos) + first;
                    GatedRow { values: at, gates: at + n_input }
                        .map(|at| recent.values.view().part(at..at + width))
                }
            }
        };
        (first..start + every).map(row).collect()
    }

    /// Remembers what the rows gave.
    pub(super) fn remember(
        &self,
        device: &Device,
        parts: &[PartRows],
        inputs: &Inputs,
        recent: &mut Recent<'_>,
    ) {
        for (rows, first) in [(&inputs.values, 0), (&inputs.gates, self.gates.rows())] {
            recent.keep(device, &self.recent, first, parts, rows);
        }
    }

    /// Bytes of all matrices.
    pub(super) fn nbytes(&self) -> usize {
        self.values.nbytes() + self.gates.nbytes() + size_of_val(&self.gates_by_place[..])
    }
}

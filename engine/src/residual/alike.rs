//! Several streams that begin alike: how they begin, the mean of them, and how a block's output goes to all of them.

use super::{Begin, BoundaryRows, Merge, On};
use crate::batch::UBatch;
use crate::device::{Rows, Values, Weighed};
use crate::kernels::{SumStart, WeightsAt};

/// A start of so many streams, which are all the embedded row.
pub(super) struct Alike(pub(super) usize);

impl Begin for Alike {
    fn begin(&self, on: On<'_>, _: &UBatch, rows: &mut BoundaryRows) {
        for _ in 1..self.0 {
            let stream = on.scratch.copy_of(&rows.hidden);
            rows.beside.push(stream);
        }
    }
}

/// The mean of so many streams.
pub(super) struct Mean(pub(super) usize);

impl Merge for Mean {
    fn merge(&self, on: On<'_>, rows: &BoundaryRows, out: &mut Rows) {
        out.set(&rows.hidden);
        rows.streams(self.0).skip(1).for_each(|stream| on.device.add(out, stream));
        on.device.scale(out, 1.0 / self.0 as f32);
    }
}

/// Weights by which a block's output is added to the streams.
pub(super) struct Spread<'a> {
    pub(super) n: usize,
    /// `[n_rows, width]`: from column `first` on what each stream gets of the output, and where streams mix behind that
    /// `[n, n]` from stream to stream.
    pub(super) weights: &'a Rows,
    pub(super) first: usize,
    pub(super) mixes: bool,
}

impl Spread<'_> {
    /// Adds a block's output `y` `[n_rows, n_embd]` to the streams, which mix where they do.
    pub(super) fn add(&self, on: On<'_>, y: &Rows, rows: &mut BoundaryRows) {
        let n = self.n;
        let (old, start) = if self.mixes {
            let old: Vec<Rows> = rows.streams(n).map(|x| on.scratch.copy_of(x)).collect();
            (old, SumStart::Zero)
        } else {
            (Vec::new(), SumStart::Own)
        };
        let sources = std::iter::once(y).chain(&old);
        let sources: Vec<_> = sources.map(|rows| (rows as &dyn Values, 0)).collect();
        for (to, stream) in rows.streams_mut(n).enumerate() {
            // What a stream gets of the output stands in the row before what it gets of the first stream.
            let (first, stride) = (self.first + to, self.weights.cols());
            let at = WeightsAt { first, stride, step: n, by_column: false };
            let of = Weighed { sources: &sources, stride: y.cols(), weights: self.weights, at };
            on.device.weigh(stream, start, &of);
        }
    }
}

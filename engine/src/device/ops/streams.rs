//! Ops over several streams of a token, or over rows that were kept on its way through the layers.

use crate::device::{Device, Memory, Rows, Values};
use crate::kernels::{DilatedConv, ScanPart, StreamShape, SumStart, Vector, WeightsAt};
use crate::ops::{AttendDepth, KeepAbove, KeepLastRows, MatchMagnitudes, StreamWeights, Weigh};

/// Sources and weights of [`Device::weigh`].
#[derive(Clone, Copy)]
pub struct Weighed<'a> {
    /// The sources, each from this value on.
    pub sources: &'a [(&'a dyn Values, usize)],
    /// Values from one row of a source to the next; 0: all rows have the same.
    pub stride: usize,
    /// Weights of rows and sources, as `at` places them.
    pub weights: &'a Rows,
    /// Place of each row's and source's weight in `weights`.
    pub at: WeightsAt,
}

impl Device {
    /// `out[r, c] = start + Σ_k x_k[r, c] w[r, k]` in the order of the sources; `out` is `[n_rows, cols]`.
    ///
    /// # Panics
    /// If a row or a weight is not there.
    pub fn weigh(&self, out: &mut Rows, start: SumStart, of: &Weighed<'_>) {
        let Weighed { sources, stride, weights, at } = *of;
        let d = out.cols();
        self.run(Weigh {
            out: out.view_mut(),
            d,
            start,
            sources: sources.iter().map(|(values, _)| values.view()).collect(),
            firsts: sources.iter().map(|(_, first)| *first).collect(),
            stride,
            weights: weights.view(),
            at,
        });
    }

    /// [`AttendDepth`].
    pub fn attend_depth(&self, sources: &[&Rows], score: &Vector, eps: f32, out: &mut Rows) {
        let sources = sources.iter().map(|x| x.view()).collect();
        self.run(AttendDepth { sources, score, eps, out: out.view_mut() });
    }

    /// [`StreamWeights`].
    pub fn stream_weights(
        &self,
        shape: &StreamShape,
        base: &Vector,
        scale: &Vector,
        weights: &mut Rows,
    ) {
        self.run(StreamWeights { shape, base, scale, weights: weights.view_mut() });
    }

    /// [`MatchMagnitudes`] of all rows.
    pub fn match_magnitudes(&self, x: &mut Rows, like: &Rows) {
        let d = x.cols();
        self.run(MatchMagnitudes { x: x.view_mut(), like: like.view(), d });
    }

    /// [`KeepAbove`] of all rows.
    pub fn keep_above(&self, x: &mut Rows, deviations: f32) {
        let d = x.cols();
        self.run(KeepAbove { x: x.view_mut(), d, deviations });
    }

    /// [`KeepLastRows`].
    pub fn keep_last_rows(
        &self,
        conv: &DilatedConv,
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        x: &Rows,
    ) {
        self.run(KeepLastRows { conv, parts, states: states.view_mut(), x: x.view() });
    }
}

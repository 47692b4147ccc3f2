//! Ops over several streams of a token, or over rows that were kept on its way through the layers.

use brigade_gpu::{Gpu, Span, SpanMut, WeighedSpans};

use super::{Device, Memory, Rows, Values};
use crate::kernels::{DilatedConv, ScanPart, StreamShape, SumStart, Vector, WeightsAt};

/// What [`Device::weigh`] sums.
#[derive(Clone, Copy)]
pub struct Weighed<'a> {
    /// The sources, each from this value on.
    pub sources: &'a [(&'a dyn Values, usize)],
    /// Values from one row of a source to the next; 0: all rows have the same.
    pub stride: usize,
    /// The weights.
    pub weights: &'a Rows,
    /// Where they stand.
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
        if let Some((gpu, out)) = self.gpu_of(out) {
            let from = sources.iter().map(|&(values, first)| {
                let span = values.on_gpu(gpu);
                span.part(first * size_of::<f32>()..span.len())
            });
            let sources: Vec<Span<'_>> = from.collect();
            let weights = weights.on_gpu(gpu);
            return gpu.weigh(
                out,
                d,
                start,
                &WeighedSpans { sources: &sources, stride, weights, at },
            );
        }
        let from = sources.iter().map(|&(values, first)| &values.on_host()[first..]);
        let sources: Vec<&[f32]> = from.collect();
        self.compute.weigh(out, d, start, (&sources, stride), (weights, at));
    }

    /// [`Compute::attend_depth`](crate::kernels::Compute::attend_depth).
    pub fn attend_depth(&self, sources: &[&Rows], score: &Vector, eps: f32, out: &mut Rows) {
        if let Some((gpu, out)) = self.gpu_of(out) {
            let sources: Vec<Span<'_>> = sources.iter().map(|x| x.on_gpu(gpu)).collect();
            return gpu.attend_depth(&sources, score.on_gpu(gpu), eps, out);
        }
        let sources: Vec<&[f32]> = sources.iter().map(|x| &x[..]).collect();
        self.compute.attend_depth(&sources, score, eps, out);
    }

    /// [`Compute::stream_weights`](crate::kernels::Compute::stream_weights).
    pub fn stream_weights(
        &self,
        shape: &StreamShape,
        base: &Vector,
        scale: &Vector,
        weights: &mut Rows,
    ) {
        match self.gpu_of(weights) {
            Some((gpu, weights)) => {
                gpu.stream_weights(shape, base.on_gpu(gpu), scale.on_gpu(gpu), weights);
            }
            None => self.compute.stream_weights(shape, base, scale, weights),
        }
    }

    /// Streams beside each other: row `r` of `out` (`[n_rows, cols]`) is row `r` of each stream in turn.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn side_by_side(&self, streams: &[&Rows], out: &mut Rows) {
        let (width, n_rows) = (out.cols(), out.n_rows());
        let all: usize = streams.iter().map(|stream| stream.cols()).sum();
        assert_eq!(width, all, "side_by_side: columns");
        assert!(streams.iter().all(|x| x.n_rows() == n_rows), "side_by_side: rows");
        if let Some((gpu, mut out)) = self.gpu_of(out) {
            let mut first = 0;
            for stream in streams {
                let columns =
                    crate::ops::HeadColumns { stride: width, first, width: stream.cols() };
                gpu.columns_into(stream.on_gpu(gpu), out.again(), columns);
                first += stream.cols();
            }
            return;
        }
        self.compute.fill_rows(out, width, &|row, out| {
            let mut rest = out;
            for stream in streams {
                let (part, others) = rest.split_at_mut(stream.cols());
                part.copy_from_slice(stream.row(row));
                rest = others;
            }
        });
    }

    /// [`Compute::match_magnitudes`](crate::kernels::Compute::match_magnitudes) of all rows.
    pub fn match_magnitudes(&self, x: &mut Rows, like: &Rows) {
        let d = x.cols();
        match self.wide_gpu_of(x) {
            Some((gpu, x)) => gpu.match_magnitudes(x, like.on_gpu(gpu), d),
            None => self.compute.match_magnitudes(x, like, d),
        }
    }

    /// [`Compute::keep_above`](crate::kernels::Compute::keep_above) of all rows.
    pub fn keep_above(&self, x: &mut Rows, deviations: f32) {
        let d = x.cols();
        match self.wide_gpu_of(x).filter(|_| d > 1) {
            Some((gpu, x)) => gpu.keep_above(x, d, deviations),
            None => self.compute.keep_above(x, d, deviations),
        }
    }

    /// [`Compute::product_roots`](crate::kernels::Compute::product_roots) of rows of `d` values.
    pub fn product_roots(
        &self,
        (x, y): (&Rows, &Rows),
        d: usize,
        (divisor, least): (f32, f32),
        out: &mut Rows,
    ) {
        match self.wide_gpu_of(out) {
            Some((gpu, out)) => {
                gpu.product_roots((x.on_gpu(gpu), y.on_gpu(gpu)), d, (divisor, least), out);
            }
            None => self.compute.product_roots((x, y), d, (divisor, least), out),
        }
    }

    /// [`Compute::dilated_conv`](crate::kernels::Compute::dilated_conv).
    pub fn dilated_conv(
        &self,
        conv: &DilatedConv,
        parts: &[ScanPart],
        (states, x, weight): (&Memory<f32>, &Rows, &Vector),
        out: &mut Rows,
    ) {
        if let (Some((gpu, out)), Some(states)) = (self.gpu_of(out), states.span()) {
            let operands = (states, x.on_gpu(gpu), weight.on_gpu(gpu));
            return gpu.dilated_conv(conv, parts, operands, out);
        }
        self.compute.dilated_conv(conv, parts, (states, x, weight), out);
    }

    /// [`Compute::keep_last_rows`](crate::kernels::Compute::keep_last_rows).
    pub fn keep_last_rows(
        &self,
        conv: &DilatedConv,
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        x: &Rows,
    ) {
        if let (Some(gpu), Some(states)) = (&self.gpu, states.span_mut()) {
            return gpu.keep_last_rows(conv, parts, states, x.on_gpu(gpu));
        }
        self.compute.keep_last_rows(conv, parts, states, x);
    }

    /// The GPU that rows lie with, and these, if it computes in f64. What needs that runs on the host otherwise.
    fn wide_gpu_of<'a>(&'a self, x: &'a mut Rows) -> Option<(&'a Gpu, SpanMut<'a>)> {
        self.gpu_of(x).filter(|(gpu, _)| gpu.facts().float64)
    }
}

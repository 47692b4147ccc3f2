//! Weighted sums of rows of several sources.

use brigade_shapes::{SumStart, WeightsAt};
use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::{Span, SpanMut};
use crate::pipelines::shader::{Shader, shader};

static SHADER: Shader = shader!("weigh");

/// Sources and weights of a weighted sum.
#[derive(Clone, Copy, Debug)]
pub struct WeighedSpans<'a> {
    /// The sources, each from its row 0 on.
    pub sources: &'a [Span<'a>],
    /// Values from one row of a source to the next; 0: all rows have the same.
    pub stride: usize,
    /// Weights of rows and sources, as `at` places them.
    pub weights: Span<'a>,
    /// Place of each row's and source's weight in `weights`.
    pub at: WeightsAt,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    sources: u64,
    weights: u64,
    result: u64,
    n: u32,
    d: u32,
    n_sources: u32,
    source_stride: u32,
    weight_stride: u32,
    weight_step: u32,
}

impl Gpu {
    /// `out[r, c] = start + Σ_k x_k[r, c] w[r, k]` in the order of the sources; `out` is `[n, d]`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn weigh(&self, out: SpanMut<'_>, d: usize, start: SumStart, of: &WeighedSpans<'_>) {
        let WeighedSpans { sources, stride, weights, at } = *of;
        let n = out.values();
        assert!(d > 0 && n.is_multiple_of(d), "weigh: {n} values in rows of {d}");
        if n == 0 || sources.is_empty() {
            if start == SumStart::Zero {
                self.fill(out, 0.0);
            }
            return;
        }
        let last = n / d - 1;
        let long = sources.iter().all(|source| source.values() >= last * stride + d);
        assert!(long, "weigh: {} rows of all sources", last + 1);
        let columns = if at.by_column { d } else { 1 };
        let end = at.of(last, sources.len() - 1) + columns;
        assert!(count(weights.values()) as usize >= end, "weigh: weights at {at:?}");
        let addresses: Vec<u64> = sources.iter().map(Span::address).collect();
        let push = Push {
            sources: self.upload(bytemuck::cast_slice(&addresses)).address(),
            weights: weights.address() + 4 * at.first as u64,
            result: out.address(),
            n: count(n),
            d: count(d),
            n_sources: count(sources.len()),
            source_stride: count(stride),
            weight_stride: count(at.stride),
            weight_step: count(at.step),
        };
        let constants = [start == SumStart::Own, at.by_column].map(u32::from);
        // SAFETY: the kernel reads a row of each source and weights for each row of `out`, which are there (checked); it reads and
        // writes the `n` values of `out`.
        unsafe { self.dispatch(Order::After, &SHADER, &constants, &push, lines(n.div_ceil(256))) };
    }
}

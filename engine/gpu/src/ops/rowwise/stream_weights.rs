//! Weights of a token's streams, by which every block reads and writes them.

use brigade_shapes::StreamShape;
use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::{Span, SpanMut};
use crate::pipelines::shader::{Shader, shader};

static SHADER: Shader = shader!("stream_weights");

/// Most streams of a token: an invocation has their matrix.
const MAX_STREAMS: usize = 16;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    weights: u64,
    base: u64,
    scale: u64,
    n_rows: u32,
    width: u32,
    rounds: u32,
    eps: f32,
    magnitude: f32,
    post_eps: f32,
}

impl Gpu {
    /// Makes weights of the numbers `weights` (`[n_rows, width]`), in place, with `base` (`[width]`) and a value of `scale` for
    /// each kind. The first `n` of each row become `sigmoid(scale[0] m + base) + eps`. The next `n` become
    /// `magnitude sigmoid(scale[1] m + base) + post_eps`. The others are a matrix `[n, n]` of `scale[2] m + base`, which is made one
    /// whose rows and columns sum to one (Sinkhorn and Knopp; arXiv 2512.24880, section 4.2). The exponentials are those of the crate libm.
    ///
    /// # Panics
    /// If shapes disagree, or there are more than 16 streams.
    pub fn stream_weights(
        &self,
        shape: &StreamShape,
        base: Span<'_>,
        scale: Span<'_>,
        weights: SpanMut<'_>,
    ) {
        let (n, width) = (shape.n, base.values());
        assert!((1..=MAX_STREAMS).contains(&n), "stream_weights: {n} streams");
        assert!(shape.fits(width), "stream_weights: {width} of {n} streams");
        let kinds = width.div_ceil(n).min(3);
        assert!(scale.values() >= kinds, "stream_weights: {kinds} scales");
        assert!(weights.values().is_multiple_of(width), "stream_weights: rows of {width}");
        let n_rows = weights.values() / width;
        count(weights.values());
        let push = Push {
            weights: weights.address(),
            base: base.address(),
            scale: scale.address(),
            n_rows: count(n_rows),
            width: count(width),
            rounds: count(shape.rounds.unwrap_or(0).max(1)),
            eps: shape.eps,
            magnitude: shape.magnitude,
            post_eps: shape.post_eps,
        };
        let groups = lines(n_rows.div_ceil(64));
        // SAFETY: the kernel reads `base` and a scale for each kind, and reads and writes the rows of `weights`, which are as
        // wide (checked).
        unsafe { self.dispatch(Order::After, &SHADER, &[n as u32], &push, groups) };
    }
}

//! Attention over depth: mixtures of rows that were kept on a token's way through the layers.

use bytemuck::{Pod, Zeroable};

use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::{Span, SpanMut};
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static SHADER: Shader = shader!("attend_depth");

/// Most sources of a row, whose weights are in shared memory.
const MAX_SOURCES: usize = 2048;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    sources: u64,
    score: u64,
    result: u64,
    n_rows: u32,
    d: u32,
    n_sources: u32,
    eps: f32,
}

impl Gpu {
    /// Makes each row of `out` a mixture of that row of all `sources` (`[n, d]` each, `d` values in `score`). The
    /// mixture is `out = Σ_i a_i v_i` with `a = softmax(z)` and `z_i = score · v_i / sqrt(mean(v_i²) + eps)`.
    ///
    /// # Panics
    /// If shapes disagree, or there is no source or more than 2048.
    pub fn attend_depth(&self, sources: &[Span<'_>], score: Span<'_>, eps: f32, out: SpanMut<'_>) {
        let (n, d) = (out.values(), score.values());
        assert!((1..=MAX_SOURCES).contains(&sources.len()), "attend_depth: {}", sources.len());
        assert!(d > 0 && n.is_multiple_of(d), "attend_depth: {n} values in rows of {d}");
        assert!(sources.iter().all(|x| x.values() == n), "attend_depth: lengths");
        let addresses: Vec<u64> = sources.iter().map(Span::address).collect();
        let push = Push {
            sources: self.upload(bytemuck::cast_slice(&addresses)).address(),
            score: score.address(),
            result: out.address(),
            n_rows: count(n) / count(d),
            d: count(d),
            n_sources: count(sources.len()),
            eps,
        };
        // SAFETY: the kernel reads the rows of the sources, which are as long as `out` (checked), and `score`; it writes the rows
        // of `out`.
        unsafe { self.dispatch(Order::After, &SHADER, &[], &push, lines(n / d)) };
    }
}

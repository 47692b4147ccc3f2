//! What stands around RWKV-7's time mixing: what is made ready for it, and what is added to its outputs.

use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use super::scan::LANES;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::shader::{Shader, shader};
use crate::span::{Span, SpanMut};

static PREPARE: Shader = shader!("wkv7_prepare");
static BONUS: Shader = shader!("wkv7_bonus");

/// Heads of rows that a workgroup takes.
const HEADS: usize = 4;

/// Vectors that shape a head's keys and rates before the scan, `[n_heads * d]` each.
#[derive(Clone, Copy, Debug)]
pub struct Wkv7Spans<'a> {
    /// Added to the decay before its sigmoid.
    pub w0: Span<'a>,
    /// Added to the learning rate before its sigmoid.
    pub a0: Span<'a>,
    /// Multiplies keys to make removal keys.
    pub k_k: Span<'a>,
    /// How much the learning rate scales keys.
    pub k_a: Span<'a>,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct PushPrepare {
    rows: [u64; 4],
    weights: [u64; 4],
    n: u32,
    n_heads: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct PushBonus {
    rows: [u64; 3],
    r_k: u64,
    result: u64,
    n: u32,
    n_heads: u32,
}

impl Gpu {
    /// Makes ready what the scan reads, `[w, k, a, kappa]`, all `[n_rows, n_heads * d]`. Let the rate be `σ(a + a0)` and
    /// `κ` the L2-normed `k ⊙ k_k`. Then `w` becomes `exp(−e^-½ · σ(w + w0))`, `a` becomes `κ ⊙ rate`, and `k` becomes `k ⊙
    /// (1 + (rate − 1) ⊙ k_a)`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn wkv7_prepare(&self, weights: Wkv7Spans<'_>, d: usize, rows: [SpanMut<'_>; 4]) {
        let all = [weights.w0, weights.a0, weights.k_k, weights.k_a];
        let (width, n) = (weights.w0.values(), count(rows[0].values()) as usize);
        assert!(d > 0 && d.is_multiple_of(LANES), "wkv7: heads of {d}");
        assert!(all.iter().all(|x| x.values() == width) && width > 0, "wkv7: weights");
        assert!(width.is_multiple_of(d) && n.is_multiple_of(width), "wkv7: whole rows of heads");
        assert!(rows.iter().all(|x| x.values() == n), "wkv7: lengths");
        let push = PushPrepare {
            rows: rows.map(|x| x.address()),
            weights: all.map(|x| x.address()),
            n: (n / d) as u32,
            n_heads: (width / d) as u32,
        };
        let groups = lines((n / d).div_ceil(HEADS));
        // SAFETY: the kernel reads the weights, and reads and writes the `n` values of each of `rows`, which are there
        // (checked).
        unsafe { self.dispatch(Order::After, &PREPARE, &[d as u32], &push, groups) };
    }

    /// `out += v · Σ_j r[j] · k[j] · r_k[j]`, head by head: `[r, k, v]` and `out` are `[n_rows, n_heads * d]`, `r_k` is one
    /// row.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn wkv7_bonus(&self, out: SpanMut<'_>, d: usize, rows: [Span<'_>; 3], r_k: Span<'_>) {
        let (width, n) = (r_k.values(), count(out.values()) as usize);
        assert!(d > 0 && d.is_multiple_of(LANES), "wkv7: heads of {d}");
        assert!(width > 0 && width.is_multiple_of(d) && n.is_multiple_of(width), "wkv7: r_k");
        assert!(rows.iter().all(|x| x.values() == n), "wkv7: lengths");
        let push = PushBonus {
            rows: rows.map(|x| x.address()),
            r_k: r_k.address(),
            result: out.address(),
            n: (n / d) as u32,
            n_heads: (width / d) as u32,
        };
        let groups = lines((n / d).div_ceil(HEADS));
        // SAFETY: the kernel reads the `n` values of each of `rows` and `r_k`, and reads and writes those of `out`, which
        // are there.
        unsafe { self.dispatch(Order::After, &BONUS, &[d as u32], &push, groups) };
    }
}

//! The time mixing of RWKV-7 (arXiv 2503.14456, section 4.1). Each head has a matrix as its state. It decays
//! key by key, forgets along one direction and learns along another: `S = S · (diag(w) − κᵀ(κ ⊙ a)) + vᵀ k`.
//! `r` reads it.
//!
//! Rows `i` of the state belong to values and are independent of each other. Sixteen of them stand side by
//! side, and keys `j` are taken in ascending order. In memory `S` is `[heads, tiles of 16 values, keys, 16]`.

use brigade_shapes::LANES;

use super::ScanPart;
use super::wkv6::check_heads;
use crate::carry::{carried, mapped};
use crate::place::Place;
use crate::vector::Vector;

/// Operands of the scan, `[n_rows, n_heads * d]` each. A head is `d` neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Wkv7Rows<V> {
    /// Receptance: reads the state out.
    pub r: V,
    /// Decay of each key, in 0..1.
    pub w: V,
    /// Keys of the rows.
    pub k: V,
    /// Values of the rows.
    pub v: V,
    /// Normed removal keys `κ`.
    pub kappa: V,
    /// Removal keys times their learning rates, `κ ⊙ a`.
    pub kappa_a: V,
}

/// Vectors that shape a head's keys and rates before the scan, `[n_heads * d]` each.
#[derive(Clone, Debug)]
pub struct Wkv7Weights {
    /// Added to the decay before its sigmoid.
    pub w0: Vector,
    /// Added to the learning rate before its sigmoid.
    pub a0: Vector,
    /// Multiplies keys to make removal keys.
    pub k_k: Vector,
    /// Share of the learning rate in the scale of keys.
    pub k_a: Vector,
}

/// Computes the scan's operands from projections, all `[n_rows, n_heads * d]`. Let the rate be `σ(a + a0)` and `κ` the
/// L2-normed `k ⊙ k_k`.
pub struct Wkv7Prepare<'a, P: Place> {
    /// Vectors of the layer.
    pub weights: &'a Wkv7Weights,
    /// Values of a head, a multiple of 16.
    pub d: usize,
    /// Becomes `exp(−e^-½ · σ(w + w0))`.
    pub w: P::Write<'a, f32>,
    /// Becomes `k ⊙ (1 + (rate − 1) ⊙ k_a)`.
    pub k: P::Write<'a, f32>,
    /// Becomes `κ ⊙ rate`.
    pub a: P::Write<'a, f32>,
    /// Becomes the removal keys `κ`.
    pub kappa: P::Write<'a, f32>,
}

/// The recurrence over the rows of `parts`.
pub struct Wkv7<'a, P: Place> {
    /// Number of heads.
    pub n_heads: usize,
    /// Values of a head, a multiple of 16.
    pub d: usize,
    /// Rows of each sequence, and its slot.
    pub parts: &'a [ScanPart],
    /// `[n_slots, n_heads * d * d]`, which follow.
    pub states: P::Write<'a, f32>,
    /// Receptance, decays, keys, values and removal keys.
    pub rows: Wkv7Rows<P::Read<'a, f32>>,
    /// `[n_rows, n_heads * d]`.
    pub out: P::Write<'a, f32>,
}

/// `out += v · Σ_j r[j] · k[j] · r_k[j]`, head by head: the part of the output that does not depend on the state.
pub struct Wkv7Bonus<'a, P: Place> {
    /// `[n_rows, n_heads * d]`.
    pub out: P::Write<'a, f32>,
    /// Values of a head, a multiple of 16.
    pub d: usize,
    /// Rows of the layer; `r`, `k` and `v` are read.
    pub rows: Wkv7Rows<P::Read<'a, f32>>,
    /// One row of factors.
    pub r_k: &'a Vector,
}

mapped!(Wkv7Rows { r: read, w: read, k: read, v: read, kappa: read, kappa_a: read });
carried!(Wkv7Prepare { weights: same, d: same, w: write, k: write, a: write, kappa: write });
carried!(Wkv7 { n_heads: same, d: same, parts: same, states: write, rows: rows, out: write });
carried!(Wkv7Bonus { out: write, d: same, rows: rows, r_k: same });

impl<P: Place> Wkv7Prepare<'_, P> {
    /// Panics if shapes disagree.
    #[inline]
    pub fn check(&self) {
        let Wkv7Weights { w0, a0, k_k, k_a } = self.weights;
        let (d, width, n) = (self.d, w0.len(), P::len_mut(&self.w));
        assert!(d > 0 && d.is_multiple_of(LANES), "wkv7_prepare: heads of {d}");
        assert!(
            [a0, k_k, k_a].iter().all(|x| x.len() == width) && width > 0,
            "wkv7_prepare: weights"
        );
        assert!(
            width.is_multiple_of(d) && n.is_multiple_of(width),
            "wkv7_prepare: whole rows of heads"
        );
        let others = [&self.k, &self.a, &self.kappa];
        assert!(others.iter().all(|x| P::len_mut(x) == n), "wkv7_prepare: lengths");
    }
}

impl<P: Place> Wkv7<'_, P> {
    /// Panics if shapes disagree, `d` is no multiple of 16, or two parts share a slot. Gives the number of rows.
    #[inline]
    pub fn check(&self) -> usize {
        let n_out = P::len_mut(&self.out);
        let Wkv7Rows { r, w, k, v, kappa, kappa_a } = &self.rows;
        assert!([r, w, k, v, kappa, kappa_a].iter().all(|x| P::len(x) == n_out), "wkv7: lengths");
        let (width, n_states) = (self.n_heads * self.d, P::len_mut(&self.states));
        check_heads("wkv7", width, self.d, self.parts, n_states, n_out)
    }
}

impl<P: Place> Wkv7Bonus<'_, P> {
    /// Panics if shapes disagree.
    #[inline]
    pub fn check(&self) {
        let (d, width, n) = (self.d, self.r_k.len(), P::len_mut(&self.out));
        assert!(d > 0 && d.is_multiple_of(LANES), "wkv7_bonus: heads of {d}");
        assert!(width > 0 && width.is_multiple_of(d) && n.is_multiple_of(width), "wkv7_bonus: r_k");
        let Wkv7Rows { r, k, v, .. } = &self.rows;
        assert!([r, k, v].iter().all(|x| P::len(x) == n), "wkv7_bonus: lengths");
    }
}

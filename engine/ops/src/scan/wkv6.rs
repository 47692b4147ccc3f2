//! The time mixing of RWKV-6 (arXiv 2404.05892, section 4.2), and gated linear attention (arXiv 2312.06635), which is
//! the same but for when the state is read. Each head has a matrix as its state. It decays key by key and learns:
//! `S = S · diag(w) + vᵀ k`. `r` reads it.
//!
//! Rows `i` of the state belong to values and are independent of each other. Sixteen of them stand side by side, and
//! keys `j` are taken in ascending order. In memory `S` is `[heads, tiles of 16 values, keys, 16]`.

use brigade_shapes::LANES;

use super::ScanPart;
use crate::carry::{carried, mapped};
use crate::place::Place;
use crate::vector::Vector;

/// Operands of the scan, `[n_rows, n_heads * d]` each. A head is `d` neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Wkv6Rows<V> {
    /// Receptance: reads the state out.
    pub r: V,
    /// Decay of each key, in 0..=1.
    pub w: V,
    /// Keys of the rows.
    pub k: V,
    /// Values of the rows.
    pub v: V,
    /// Shares of a row's own key and value, `[n_heads * d]`: `r` reads the state before the row, plus these shares of
    /// the row. `None`: it reads the state behind the row.
    pub own: Option<V>,
}

/// The recurrence over the rows of `parts`.
pub struct Wkv6<'a, P: Place> {
    /// Number of heads.
    pub n_heads: usize,
    /// Values of a head, a multiple of 16.
    pub d: usize,
    /// Rows of each sequence, and its slot.
    pub parts: &'a [ScanPart],
    /// `[n_slots, n_heads * d * d]`, which follow.
    pub states: P::Write<'a, f32>,
    /// Receptance, decays, keys and values.
    pub rows: Wkv6Rows<P::Read<'a, f32>>,
    /// `[n_rows, n_heads * d]`.
    pub out: P::Write<'a, f32>,
}

/// `w = exp(-exp(w + bias))`, row by row: decays from what projections give.
pub struct Wkv6Decay<'a, P: Place> {
    /// `[n_rows, d]`, `d` a multiple of 16.
    pub w: P::Write<'a, f32>,
    /// `[d]`: added before the inner exponential.
    pub bias: &'a Vector,
}

mapped!(Wkv6Rows { r: read, w: read, k: read, v: read, own: some_read });
carried!(Wkv6 { n_heads: same, d: same, parts: same, states: write, rows: rows, out: write });
carried!(Wkv6Decay { w: write, bias: same });

impl<P: Place> Wkv6<'_, P> {
    /// Panics if shapes disagree, `d` is no multiple of 16, or two parts share a slot. Gives the number of rows.
    #[inline]
    pub fn check(&self) -> usize {
        let (d, width, n_out) = (self.d, self.n_heads * self.d, P::len_mut(&self.out));
        let Wkv6Rows { r, w, k, v, own } = &self.rows;
        assert!([r, w, k, v].iter().all(|x| P::len(x) == n_out), "wkv6: lengths");
        assert!(own.as_ref().is_none_or(|own| P::len(own) == width), "wkv6: one row of own");
        check_heads("wkv6", width, d, self.parts, P::len_mut(&self.states), n_out)
    }
}

/// Panics where heads of matrices do not fit rows and states. Gives the number of rows.
#[inline]
pub(super) fn check_heads(
    op: &str,
    width: usize,
    d: usize,
    parts: &[ScanPart],
    n_states: usize,
    n_out: usize,
) -> usize {
    assert!(d > 0 && width > 0 && d.is_multiple_of(LANES), "{op}: heads of {d}");
    let n_rows = n_out / width;
    assert_eq!(n_out, n_rows * width, "{op}: length of out");
    ScanPart::check(parts, n_rows, n_states / (width * d), op);
    n_rows
}

impl<P: Place> Wkv6Decay<'_, P> {
    /// Panics if shapes disagree.
    #[inline]
    pub fn check(&self) {
        let (n, d) = (P::len_mut(&self.w), self.bias.len());
        assert!(d > 0 && d.is_multiple_of(LANES), "wkv6_decay: rows of {d}");
        assert!(n.is_multiple_of(d), "wkv6_decay: whole rows");
    }
}

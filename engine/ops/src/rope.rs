//! Rotary position embeddings of heads.

use brigade_shapes::RopeLayout;

use crate::carry::{carried, mapped};
use crate::place::Place;

/// Rotates the first elements of each head of `x`, in place. A pair becomes `x0 cos - x1 sin` and `x1 cos + x0 sin`, and row `r`
/// has the angles of row `r`.
pub struct Rope<'a, P: Place> {
    /// `[n_rows, n_heads, head_dim]`.
    pub x: P::Write<'a, f32>,
    /// Elements of a head.
    pub head_dim: usize,
    /// Cosines and sines of each row.
    pub angles: Angles<P::Read<'a, f32>>,
}

/// Cosines and sines of rows.
#[derive(Clone, Copy, Debug)]
pub struct Angles<V> {
    /// `[n_rows, n_rot]`: the cosines of all pairs, then their sines.
    pub by_pair: V,
    /// Rotated elements at the start of a head, even; the rest is left alone.
    pub n_rot: usize,
    /// How a head's elements form pairs.
    pub layout: RopeLayout,
}

mapped!(Angles { by_pair: read, n_rot: same, layout: same });
carried!(Rope { x: write, head_dim: same, angles: rows });

impl<P: Place> Rope<'_, P> {
    /// Panics if shapes disagree, or `n_rot` is odd or more than a head. Gives the number of rows; 0 where nothing is rotated.
    #[inline]
    pub fn check(&self) -> usize {
        let (Angles { by_pair, n_rot, .. }, head_dim) = (&self.angles, self.head_dim);
        assert!(
            *n_rot <= head_dim && n_rot.is_multiple_of(2),
            "rope: {n_rot} rotated of {head_dim}"
        );
        let n = P::len(by_pair);
        let n_rows = n.checked_div(*n_rot).unwrap_or(0);
        assert_eq!(n, n_rows * n_rot, "rope: rows of {n_rot} angles");
        let len = P::len_mut(&self.x);
        assert!(
            n_rows == 0 || len.is_multiple_of(n_rows * head_dim),
            "rope: {len} values in {n_rows} rows of heads of {head_dim}"
        );
        n_rows
    }
}

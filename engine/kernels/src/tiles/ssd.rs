//! The selective state space of Mamba-2 (SSD, arXiv 2405.21060). There is one decay for each head and token,
//! and each head has a state `[n_state, head_dim]`.

use std::ops::Range;

use super::conv::Columns;
use super::out_rows::Rows;
use super::scan::ScanPart;
use crate::vector::Vector;

pub use brigade_shapes::SsdShape;

/// The recurrence of one layer. For each token, with `delta = softplus(dt + dt_bias)` and the group
/// `g = h / (n_head / n_group)` of head `h`:
/// `S[n][p] = exp(delta a) S[n][p] + B[g][n] (delta x[p])`, then
/// `y[p] = d x[p] + Σ_n C[g][n] S[n][p]`, `n` in ascending order.
#[derive(Clone, Debug)]
pub struct Ssd {
    /// Its sizes.
    pub shape: SsdShape,
    /// `[n_head]`: logarithmic decay of a unit of time, negative.
    pub a: Vector,
    /// `[n_head]`: weight of the way past the state.
    pub d: Vector,
    /// `[n_head]`: added to the time step before its softplus.
    pub dt_bias: Vector,
}

/// The operands of a ubatch, columns of `[n_rows, ..]` each.
#[derive(Clone, Copy, Debug)]
pub struct SsdInput<'a> {
    /// `[n_rows, n_head * head_dim]`.
    pub x: Columns<'a>,
    /// `[n_rows, n_group * n_state]`.
    pub b: Columns<'a>,
    /// `[n_rows, n_group * n_state]`.
    pub c: Columns<'a>,
    /// `[n_rows, n_head]`: time steps before bias and softplus.
    pub dt: Columns<'a>,
}

/// Some heads of one group over the rows of a part.
pub(crate) struct SsdTile<'a> {
    pub(crate) ssd: &'a Ssd,
    pub(crate) heads: Range<usize>,
    pub(crate) part: &'a ScanPart,
    /// `[heads, n_state, head_dim]`.
    pub(crate) state: &'a mut [f32],
    pub(crate) input: SsdInput<'a>,
    /// All values of the output, `[n_rows, n_head * head_dim]`.
    pub(crate) out: &'a Rows<'a, f32>,
}

impl SsdTile<'_> {
    /// The group of the tile's heads.
    #[inline]
    pub(crate) fn group(&self) -> usize {
        self.heads.start / (self.ssd.shape.n_head / self.ssd.shape.n_group)
    }

    /// Where channels `start ..` of head `head` of a row go.
    #[inline(always)]
    pub(crate) fn out(&mut self, row: usize, head: usize, start: usize, n: usize) -> &mut [f32] {
        let at = row * self.ssd.shape.n_inner() + head * self.ssd.shape.head_dim + start;
        // SAFETY: tiles have disjoint heads or, being of different parts, disjoint rows, and the
        // mutable borrow of the tile keeps its own values apart; callers stay within the tile's
        // heads and rows.
        unsafe { self.out.rows(at..at + n) }
    }
}

impl Ssd {
    /// `a`, `d` and `dt_bias` are `[n_head]`.
    ///
    /// # Panics
    /// If lengths disagree, a size is 0 or the groups do not divide the heads.
    #[inline]
    pub fn new(shape: SsdShape, a: Vector, d: Vector, dt_bias: Vector) -> Self {
        assert!(shape.state_len() > 0 && shape.n_group > 0, "ssd: {shape:?}");
        assert!(shape.n_head.is_multiple_of(shape.n_group), "ssd: {shape:?}");
        for values in [&a, &d, &dt_bias] {
            assert_eq!(values.len(), shape.n_head, "ssd: a value for each head");
        }
        Self { shape, a, d, dt_bias }
    }

    /// `[n_head]`: logarithmic decay of a unit of time, negative.
    #[inline]
    pub fn a(&self) -> &[f32] {
        &self.a
    }

    /// `[n_head]`: weight of the way past the state.
    #[inline]
    pub fn d(&self) -> &[f32] {
        &self.d
    }

    /// `[n_head]`: added to the time step before its softplus.
    #[inline]
    pub fn dt_bias(&self) -> &[f32] {
        &self.dt_bias
    }

    /// Its sizes.
    #[inline]
    pub fn shape(&self) -> &SsdShape {
        &self.shape
    }
}

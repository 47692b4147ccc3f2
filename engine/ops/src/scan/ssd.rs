//! The selective state space of Mamba-2 (SSD, arXiv 2405.21060). There is one decay for each head and token,
//! and each head has a state `[n_state, head_dim]`.

use brigade_shapes::SsdShape;

use super::{Columns, ScanPart, check_columns};
use crate::carry::{carried, mapped};
use crate::place::Place;
use crate::vector::Vector;

/// The recurrence of one layer. For each token, with `delta = softplus(dt + dt_bias)` and the group
/// `g = h / (n_head / n_group)` of head `h`:
/// `S[n][p] = exp(delta a) S[n][p] + B[g][n] (delta x[p])`, then
/// `y[p] = d x[p] + Σ_n C[g][n] S[n][p]`, `n` in ascending order.
#[derive(Clone, Debug)]
pub struct Ssd {
    /// Sizes of heads, groups and states.
    pub shape: SsdShape,
    /// `[n_head]`: logarithmic decay of a unit of time, negative.
    pub a: Vector,
    /// `[n_head]`: weight of the way past the state.
    pub d: Vector,
    /// `[n_head]`: added to the time step before its softplus.
    pub dt_bias: Vector,
}

/// Operands of the recurrence, columns of `[n_rows, ..]` each.
#[derive(Clone, Copy, Debug)]
pub struct SsdInput<V> {
    /// `[n_rows, n_head * head_dim]`.
    pub x: Columns<V>,
    /// `[n_rows, n_group * n_state]`.
    pub b: Columns<V>,
    /// `[n_rows, n_group * n_state]`.
    pub c: Columns<V>,
    /// `[n_rows, n_head]`: time steps before bias and softplus.
    pub dt: Columns<V>,
}

/// The recurrence over the rows of `parts`.
pub struct SsdScan<'a, P: Place> {
    /// Constants of the layer.
    pub ssd: &'a Ssd,
    /// Rows of each sequence, and its slot.
    pub parts: &'a [ScanPart],
    /// `[n_slots, shape.state_len()]`, which follow.
    pub states: P::Write<'a, f32>,
    /// Inputs, `B`, `C` and time steps.
    pub input: SsdInput<P::Read<'a, f32>>,
    /// `[n_rows, n_head * head_dim]`.
    pub out: P::Write<'a, f32>,
}

mapped!(SsdInput { x: rows, b: rows, c: rows, dt: rows });
carried!(SsdScan { ssd: same, parts: same, states: write, input: rows, out: write });

impl<P: Place> SsdScan<'_, P> {
    /// Panics if shapes disagree, or two parts share a slot. Gives the number of rows.
    #[inline]
    pub fn check(&self) -> usize {
        let shape = &self.ssd.shape;
        let n_out = P::len_mut(&self.out);
        let n_rows = n_out / shape.n_inner();
        assert_eq!(n_out, n_rows * shape.n_inner(), "ssd: length of out");
        let SsdInput { x, b, c, dt } = &self.input;
        check_columns::<P>(x, n_rows, shape.n_inner(), "ssd: x");
        check_columns::<P>(b, n_rows, shape.n_bc(), "ssd: B");
        check_columns::<P>(c, n_rows, shape.n_bc(), "ssd: C");
        check_columns::<P>(dt, n_rows, shape.n_head, "ssd: dt");
        let n_slots = P::len_mut(&self.states) / shape.state_len();
        ScanPart::check(self.parts, n_rows, n_slots, "ssd");
        n_rows
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
}

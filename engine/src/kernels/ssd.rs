//! The selective state space of Mamba-2 (SSD, arXiv 2405.21060). There is one decay for each head and token,
//! and each head has a state `[n_state, head_dim]`.

use std::ops::Range;

use super::compute::Compute;
use super::conv::Columns;
use super::ops::Rows;
use super::scan::{ScanPart, States};

/// Heads of a group that one unit of work takes: they share its packed B and C.
const HEADS_PER_UNIT: usize = 4;

/// Sizes of the recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SsdShape {
    /// Heads.
    pub n_head: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Width of B and C: state values of a channel.
    pub n_state: usize,
    /// Groups of neighbouring heads that share B and C; divides `n_head`.
    pub n_group: usize,
}

impl SsdShape {
    /// Channels of all heads.
    pub fn n_inner(&self) -> usize {
        self.n_head * self.head_dim
    }

    /// Width of B, and of C, over all groups.
    pub fn n_bc(&self) -> usize {
        self.n_group * self.n_state
    }

    /// Values of a sequence's state, `[n_head, n_state, head_dim]`.
    pub fn state_len(&self) -> usize {
        self.n_head * self.head_state()
    }

    /// Values of a head's state.
    pub(super) fn head_state(&self) -> usize {
        self.n_state * self.head_dim
    }
}

/// The recurrence of one layer. For each token, with `delta = softplus(dt + dt_bias)` and the group
/// `g = h / (n_head / n_group)` of head `h`:
/// `S[n][p] = exp(delta a) S[n][p] + B[g][n] (delta x[p])`, then
/// `y[p] = d x[p] + Σ_n C[g][n] S[n][p]`, `n` in ascending order.
#[derive(Clone, Debug)]
pub struct Ssd {
    pub(super) shape: SsdShape,
    /// `[n_head]`: logarithmic decay of a unit of time, negative.
    pub(super) a: Vec<f32>,
    /// `[n_head]`: weight of the way past the state.
    pub(super) d: Vec<f32>,
    /// `[n_head]`: added to the time step before its softplus.
    pub(super) dt_bias: Vec<f32>,
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
pub(super) struct SsdTile<'a> {
    pub(super) ssd: &'a Ssd,
    pub(super) heads: Range<usize>,
    pub(super) part: &'a ScanPart,
    /// `[heads, n_state, head_dim]`.
    pub(super) state: &'a mut [f32],
    pub(super) input: SsdInput<'a>,
    /// All values of the output, `[n_rows, n_head * head_dim]`.
    pub(super) out: &'a Rows<'a, f32>,
}

impl SsdTile<'_> {
    /// The group of the tile's heads.
    pub(super) fn group(&self) -> usize {
        self.heads.start / (self.ssd.shape.n_head / self.ssd.shape.n_group)
    }

    /// Where channels `start ..` of head `head` of a row go.
    #[inline(always)]
    pub(super) fn out(&mut self, row: usize, head: usize, start: usize, n: usize) -> &mut [f32] {
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
    pub fn new(shape: SsdShape, a: Vec<f32>, d: Vec<f32>, dt_bias: Vec<f32>) -> Self {
        assert!(shape.state_len() > 0 && shape.n_group > 0, "ssd: {shape:?}");
        assert!(shape.n_head.is_multiple_of(shape.n_group), "ssd: {shape:?}");
        for values in [&a, &d, &dt_bias] {
            assert_eq!(values.len(), shape.n_head, "ssd: a value for each head");
        }
        Self { shape, a, d, dt_bias }
    }

    /// Its sizes.
    pub fn shape(&self) -> &SsdShape {
        &self.shape
    }
}

impl Compute {
    /// Runs the recurrence over the rows of `parts`: `out` is `[n_rows, n_head * head_dim]`,
    /// `states` is `[n_slots, shape.state_len()]` and follows.
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn ssd(
        &self,
        ssd: &Ssd,
        parts: &[ScanPart],
        states: &mut [f32],
        input: SsdInput<'_>,
        out: &mut [f32],
    ) {
        let kernel = self.kernels().ssd;
        self.ssd_with(&kernel, HEADS_PER_UNIT, ssd, (parts, states), input, out);
    }

    /// [`Compute::ssd`] as it is usually written, for benches to compare with: token by token, lanes
    /// along `n_state` with a sum over lanes for each output, a head's state being
    /// `[head_dim, n_state]`. No block calls it.
    pub fn ssd_plain(
        &self,
        ssd: &Ssd,
        parts: &[ScanPart],
        states: &mut [f32],
        input: SsdInput<'_>,
        out: &mut [f32],
    ) {
        let kernel = self.kernels().ssd_plain;
        self.ssd_with(&kernel, HEADS_PER_UNIT, ssd, (parts, states), input, out);
    }

    fn ssd_with(
        &self,
        kernel: &(dyn Fn(SsdTile<'_>) + Sync),
        per_unit: usize,
        ssd: &Ssd,
        (parts, states): (&[ScanPart], &mut [f32]),
        input: SsdInput<'_>,
        out: &mut [f32],
    ) {
        let shape = &ssd.shape;
        check(shape, parts, states.len(), &input, out.len());
        let states = States::new(states, shape.state_len());
        let out = Rows::new(out, 1);
        let per_group = shape.n_head / shape.n_group;
        let units = per_group.div_ceil(per_unit);
        let cost = per_group.min(per_unit) * shape.head_state();
        self.for_units(parts, units * shape.n_group, cost, &|part, unit| {
            let start = unit / units * per_group + unit % units * per_unit;
            let end = (start + per_unit).min((unit / units + 1) * per_group);
            let range = start * shape.head_state()..end * shape.head_state();
            // SAFETY: no two parts have a slot in common (checked), and the heads of one are handed out once.
            let state = unsafe { states.part(part.slot, range) };
            kernel(SsdTile { ssd, heads: start..end, part, state, input, out: &out });
        });
    }
}

/// Panics where operands do not have the shape's sizes.
pub(super) fn check(
    shape: &SsdShape,
    parts: &[ScanPart],
    n_states: usize,
    input: &SsdInput<'_>,
    n_out: usize,
) {
    let n_rows = n_out / shape.n_inner();
    assert_eq!(n_out, n_rows * shape.n_inner(), "ssd: length of out");
    let widths = [shape.n_inner(), shape.n_bc(), shape.n_bc(), shape.n_head];
    for (columns, width) in [input.x, input.b, input.c, input.dt].iter().zip(widths) {
        assert!(columns.data.len() >= n_rows * columns.stride, "ssd: rows of {n_rows}");
        assert!(columns.first_col + width <= columns.stride, "ssd: {width} columns");
    }
    ScanPart::check(parts, n_rows, n_states / shape.state_len(), "ssd");
}

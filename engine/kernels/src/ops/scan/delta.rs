//! The gated delta rule, heads and strips of their states spread over the threads, and the decays that it takes.

use brigade_ops::{DeltaScan, Host};

use crate::compute::Compute;
use crate::simd::LANES;
use crate::tiles::out_rows::Rows;
use crate::tiles::scan::States;
use crate::tiles::scan::delta::DeltaTile;

/// Strips that one task takes.
const STRIPS: usize = 8;

impl Compute {
    /// Runs the op [`DeltaScan`].
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn delta_scan(&self, op: DeltaScan<'_, Host>) {
        self.delta_tiles(op, STRIPS * LANES, self.kernels().delta);
    }

    /// The delta rule token by token with lanes along the keys, which [`Compute::delta_scan`] is
    /// measured against. Its states are `[n_slots, n_head, d_v, d_k]`, `d_k` a multiple of 16.
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn delta_plain(&self, op: DeltaScan<'_, Host>) {
        assert!(op.shape.d_k.is_multiple_of(LANES), "delta: keys of {}", op.shape.d_k);
        let tile = op.shape.d_v;
        self.delta_tiles(op, tile, self.kernels().delta_plain);
    }

    /// Checks the shapes and runs `kernel` on tiles of `tile` value columns of each head.
    fn delta_tiles(
        &self,
        op: DeltaScan<'_, Host>,
        tile: usize,
        kernel: impl Fn(DeltaTile<'_>) + Sync,
    ) {
        op.check();
        let DeltaScan { shape, parts, states, x, out } = op;
        let states = States::new(states, shape.state_len());
        let out = Rows::new(out, 1);
        let per_head = shape.d_v.div_ceil(tile);
        let row_cost = 4 * shape.d_k * tile.min(shape.d_v);
        self.for_units(parts, shape.n_head * per_head, row_cost, &|part, unit| {
            let (head, start) = (unit / per_head, unit % per_head * tile);
            let end = (start + tile).min(shape.d_v);
            let column = |c: usize| (head * shape.d_v + c) * shape.d_k;
            // SAFETY: the parts were checked, and each tile of one is handed out once.
            let state = unsafe { states.of(part, column(start)..column(end)) };
            kernel(DeltaTile { shape, part, head, start, state, x, out: &out });
        });
    }

    /// Decay factors of a gate: `x = exp(rates * softplus(x + bias))` for each row of `x` (`[n, d]`,
    /// `d = bias.len() = rates.len()`); with rates below 0 they lie in 0..=1.
    pub fn decay_factors(&self, x: &mut [f32], bias: &[f32], rates: &[f32]) {
        assert_eq!(bias.len(), rates.len(), "decay_factors: biases and rates");
        let decay = self.kernels().decay_factors;
        self.each_row(x, bias.len(), "decay_factors", &|_, row| decay(row, bias, rates));
    }

    /// [`Compute::decay_factors`] no smaller than `e^bound` (`bound` below 0):
    /// `x = exp(bound * sigmoid(-rates * (x + bias)))`.
    pub fn bounded_decay_factors(&self, x: &mut [f32], bias: &[f32], rates: &[f32], bound: f32) {
        assert_eq!(bias.len(), rates.len(), "bounded_decay_factors: biases and rates");
        let decay = self.kernels().bounded_decay_factors;
        self.each_row(x, bias.len(), "bounded_decay_factors", &|_, row| {
            decay(row, bias, rates, bound);
        });
    }
}

//! The selective scan of Mamba-1, tiles of channels spread over the threads.

use brigade_ops::{Host, MambaScan};

use crate::compute::Compute;
use crate::simd::LANES;
use crate::tiles::out_rows::Rows;
use crate::tiles::scan::States;
use crate::tiles::scan::mamba::MambaTile;

/// Work of one element of the state, mostly its exponential, in elements touched.
const ROW_COST: usize = 8;

impl Compute {
    /// Runs the op [`MambaScan`].
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn mamba_scan(&self, op: MambaScan<'_, Host>) {
        op.check();
        let MambaScan { weights, parts, states, rows, out } = op;
        let states = States::new(states, weights.state_len());
        let out = Rows::new(out, 1);
        let per_tile = weights.n_state * LANES;
        self.for_units(
            parts,
            weights.channels.div_ceil(LANES),
            ROW_COST * per_tile,
            &|part, tile| {
                // SAFETY: the parts were checked, and each tile of one is handed out once.
                let state = unsafe { states.of(part, tile * per_tile..(tile + 1) * per_tile) };
                let state = state.as_chunks_mut().0;
                let out = &out;
                (self.kernels().mamba_scan)(&mut MambaTile {
                    weights,
                    tile,
                    part,
                    state,
                    rows,
                    out,
                });
            },
        );
    }
}

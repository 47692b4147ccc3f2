//! The selective scan of Mamba-1, tiles of channels spread over the threads.

use crate::compute::Compute;
use crate::simd::LANES;
use crate::tiles::mamba::{MambaRows, MambaScan, MambaTile};
use crate::tiles::out_rows::Rows;
use crate::tiles::scan::{ScanPart, States};

impl Compute {
    /// Runs `scan` over the rows of `parts` from their states (`[n_slots, state_len]`), which follow;
    /// `out` is `[n_rows, channels]`.
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn mamba_scan(
        &self,
        scan: &MambaScan,
        parts: &[ScanPart],
        states: &mut [f32],
        rows: MambaRows<'_>,
        out: &mut [f32],
    ) {
        let (channels, n_state) = (scan.channels, scan.n_state);
        let n_rows = out.len() / channels;
        assert_eq!(out.len(), n_rows * channels, "mamba: length of out");
        assert!(rows.u.len() == out.len() && rows.dt.len() == out.len(), "mamba: u and dt");
        assert!(rows.b.len() == n_rows * n_state && rows.c.len() == rows.b.len(), "mamba: B and C");
        assert!(rows.gate.data.len() >= n_rows * rows.gate.stride, "mamba: rows of the gate");
        assert!(rows.gate.first_col + channels <= rows.gate.stride, "mamba: columns of the gate");
        let state_len = MambaScan::state_len(channels, n_state);
        ScanPart::check(parts, n_rows, states.len() / state_len, "mamba");
        let states = States::new(states, state_len);
        let out = Rows::new(out, 1);
        let n_tiles = channels.div_ceil(LANES);
        self.for_units(parts, n_tiles, ROW_COST * LANES * n_state, &|part, tile| {
            let per_tile = n_state * LANES;
            // SAFETY: the parts were checked, and each tile of one is handed out once.
            let state = unsafe { states.of(part, tile * per_tile..(tile + 1) * per_tile) };
            let state = state.as_chunks_mut().0;
            (self.kernels().mamba_scan)(&mut MambaTile {
                scan,
                tile,
                part,
                state,
                rows,
                out: &out,
            });
        });
    }
}

/// Work of one element of the state, mostly its exponential, in elements touched.
const ROW_COST: usize = 8;

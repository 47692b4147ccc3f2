//! The time mixing of RWKV-6, tiles of heads spread over the threads.

use crate::compute::Compute;
use crate::simd::LANES;
use crate::tiles::scan::ScanPart;
use crate::tiles::wkv6::{Wkv6Rows, Wkv6Tile};

impl Compute {
    /// `w = exp(-exp(w + bias))`, row by row: decays from what projections give. `bias` is one row.
    ///
    /// # Panics
    /// If shapes disagree, or a row is no multiple of 16.
    pub fn wkv6_decay(&self, w: &mut [f32], bias: &[f32]) {
        assert!(bias.len().is_multiple_of(LANES), "wkv6: rows of {}", bias.len());
        let decay = self.kernels().wkv6_decay;
        self.each_row(w, bias.len(), "wkv6_decay", &|_, row| decay(row, bias));
    }

    /// Runs the recurrence over the rows of `parts`, from their states (`[n_slots, n_heads * d * d]`), which
    /// follow. `out` is `[n_rows, n_heads * d]`.
    ///
    /// # Panics
    /// If shapes disagree, `d` is no multiple of 16, or two parts share a slot.
    pub fn wkv6(
        &self,
        (n_heads, d): (usize, usize),
        parts: &[ScanPart],
        states: &mut [f32],
        rows: Wkv6Rows<'_>,
        out: &mut [f32],
    ) {
        let width = n_heads * d;
        for x in [rows.r, rows.w, rows.k, rows.v] {
            assert_eq!(x.len(), out.len(), "wkv6: lengths");
        }
        assert!(rows.own.is_none_or(|own| own.len() == width), "wkv6: one row of own");
        self.for_values("wkv6", (n_heads, d), parts, (states, out), &|part, value, state, out| {
            let head = value / d * d;
            (self.kernels().wkv6)(&mut Wkv6Tile { part, state, rows, width, d, head, value, out });
        });
    }
}

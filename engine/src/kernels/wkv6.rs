//! The time mixing of RWKV-6 (arXiv 2404.05892, section 4.2), and gated linear attention (arXiv 2312.06635), which is
//! the same but for when the state is read. Each head has a matrix as its state. It decays key by key and learns:
//! `S = S · diag(w) + vᵀ k`. `r` reads it.
//!
//! Rows `i` of the state belong to values and are independent of each other. Sixteen of them stand side by side, and
//! keys `j` are taken in ascending order. In memory `S` is `[heads, tiles of 16 values, keys, 16]`.

use super::compute::Compute;
use super::ops::Rows;
use super::scan::{ScanPart, States};
use super::simd::LANES;

/// What the scan reads; each is `[n_rows, n_heads * d]`, and a head is `d` neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Wkv6Rows<'a> {
    /// Receptance: reads the state out.
    pub r: &'a [f32],
    /// Decay of each key, in 0..=1.
    pub w: &'a [f32],
    /// Keys.
    pub k: &'a [f32],
    /// Values.
    pub v: &'a [f32],
    /// How much of a row's own key and value is read, `[n_heads * d]`: `r` reads the state before the row, plus so much
    /// of the row. `None`: it reads the state behind the row.
    pub own: Option<&'a [f32]>,
}

/// [`LANES`] values of one head of one part.
pub(super) struct Wkv6Tile<'a> {
    pub(super) part: &'a ScanPart,
    /// `[d, LANES]`.
    pub(super) state: &'a mut [[f32; LANES]],
    rows: Wkv6Rows<'a>,
    /// Width of a row and of a head.
    width: usize,
    d: usize,
    /// First column of the head.
    head: usize,
    /// First column of the tile's values.
    value: usize,
    out: &'a Rows<'a, f32>,
}

/// One row of a tile; all but `v` are `[d]`.
pub(super) struct Wkv6Row<'a> {
    pub(super) r: &'a [f32],
    pub(super) w: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) v: &'a [f32; LANES],
}

impl<'a> Wkv6Tile<'a> {
    /// Row `row` as the tile sees it.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> Wkv6Row<'a> {
        let start = row * self.width + self.head;
        let Wkv6Rows { r, w, k, v, .. } = self.rows;
        let [r, w, k] = [r, w, k].map(|x| &x[start..start + self.d]);
        let v = v[row * self.width + self.value..].first_chunk();
        Wkv6Row { r, w, k, v: v.expect("a head is whole tiles") }
    }

    /// How much of a row's own key is read, `[d]`.
    pub(super) fn own(&self) -> Option<&'a [f32]> {
        self.rows.own.map(|own| &own[self.head..self.head + self.d])
    }

    /// Where row `row` of the tile goes.
    #[inline(always)]
    pub(super) fn out(&mut self, row: usize) -> &mut [f32; LANES] {
        let start = row * self.width + self.value;
        // SAFETY: tiles have disjoint columns or, being of different parts, disjoint rows, and the
        // mutable borrow of the tile keeps its own rows apart.
        let out = unsafe { self.out.rows(start..start + LANES) };
        out.first_chunk_mut().expect("as long as asked for")
    }
}

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
        assert!(d > 0 && d.is_multiple_of(LANES), "wkv6: heads of {d}");
        let n_rows = out.len() / width;
        assert_eq!(out.len(), n_rows * width, "wkv6: length of out");
        for x in [rows.r, rows.w, rows.k, rows.v] {
            assert_eq!(x.len(), out.len(), "wkv6: lengths");
        }
        assert!(rows.own.is_none_or(|own| own.len() == width), "wkv6: one row of own");
        ScanPart::check(parts, n_rows, states.len() / (width * d), "wkv6");
        let states = States::new(states, width * d);
        let out = Rows::new(out, 1);
        self.for_units(parts, width / LANES, 2 * LANES * d, &|part, tile| {
            let value = tile * LANES;
            let head = value / d * d;
            // SAFETY: no two parts have a slot in common (checked), and each tile of one is handed out once.
            let state = unsafe { states.part(part.slot, value * d..(value + LANES) * d) };
            let state = state.as_chunks_mut().0;
            let out = &out;
            (self.kernels().wkv6)(&mut Wkv6Tile { part, state, rows, width, d, head, value, out });
        });
    }
}

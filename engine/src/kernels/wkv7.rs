//! The time mixing of RWKV-7 (arXiv 2503.14456, section 4.1). Each head has a matrix as its state. It decays
//! key by key, forgets along one direction and learns along another: `S = S · (diag(w) − κᵀ(κ ⊙ a)) + vᵀ k`.
//! `r` reads it.
//!
//! Rows `i` of the state belong to values and are independent of each other. Sixteen of them stand side by
//! side, and keys `j` are taken in ascending order. In memory `S` is `[heads, tiles of 16 values, keys, 16]`.

use super::compute::Compute;
use super::ops::Rows;
use super::scan::{ScanPart, States};
use super::simd::LANES;

/// What the scan reads; each is `[n_rows, n_heads * d]`, and a head is `d` neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Wkv7Rows<'a> {
    /// Receptance: reads the state out.
    pub r: &'a [f32],
    /// Decay of each key, in 0..1.
    pub w: &'a [f32],
    /// Keys.
    pub k: &'a [f32],
    /// Values.
    pub v: &'a [f32],
    /// Normed removal keys `κ`.
    pub kappa: &'a [f32],
    /// Their learning rates times themselves, `κ ⊙ a`.
    pub kappa_a: &'a [f32],
}

/// [`LANES`] values of one head of one part.
pub(super) struct Wkv7Tile<'a> {
    pub(super) part: &'a ScanPart,
    /// `[d, LANES]`.
    pub(super) state: &'a mut [[f32; LANES]],
    rows: Wkv7Rows<'a>,
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
pub(super) struct Wkv7Row<'a> {
    pub(super) r: &'a [f32],
    pub(super) w: &'a [f32],
    pub(super) k: &'a [f32],
    pub(super) kappa: &'a [f32],
    pub(super) kappa_a: &'a [f32],
    pub(super) v: &'a [f32; LANES],
}

impl Wkv7Tile<'_> {
    /// Row `row` as the tile sees it.
    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> Wkv7Row<'_> {
        let head = |x| head_of(x, row * self.width + self.head, self.d);
        let v = &self.rows.v[row * self.width + self.value..];
        Wkv7Row {
            r: head(self.rows.r),
            w: head(self.rows.w),
            k: head(self.rows.k),
            kappa: head(self.rows.kappa),
            kappa_a: head(self.rows.kappa_a),
            v: v.first_chunk().expect("a head is whole tiles"),
        }
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

#[inline(always)]
fn head_of(x: &[f32], start: usize, d: usize) -> &[f32] {
    &x[start..start + d]
}

/// Vectors that shape a head's keys and rates before the scan, `[n_heads * d]` each.
#[derive(Clone, Debug)]
pub struct Wkv7Weights {
    /// Added to the decay before its sigmoid.
    pub w0: Vec<f32>,
    /// Added to the learning rate before its sigmoid.
    pub a0: Vec<f32>,
    /// Multiplies keys to make removal keys.
    pub k_k: Vec<f32>,
    /// How much the learning rate scales keys.
    pub k_a: Vec<f32>,
}

/// One head of one row on its way to the scan.
pub(super) struct Wkv7Head<'a> {
    /// In: before bias and sigmoid. Out: the decay.
    pub(super) w: &'a mut [f32],
    /// In: projected keys. Out: scaled by the learning rate.
    pub(super) k: &'a mut [f32],
    /// In: before bias and sigmoid. Out: `κ ⊙ a`.
    pub(super) a: &'a mut [f32],
    /// Out: `κ`.
    pub(super) kappa: &'a mut [f32],
    /// The weights of the head: `w0`, `a0`, `k_k`, `k_a`.
    pub(super) weights: [&'a [f32]; 4],
}

impl Compute {
    /// Makes ready what the scan reads, all `[n_rows, n_heads * d]`. Let the rate be `σ(a + a0)` and `κ` the
    /// L2-normed `k ⊙ k_k`. Then `w` becomes `exp(−e^-½ · σ(w + w0))`, `a` becomes `κ ⊙ rate`, and `k`
    /// becomes `k ⊙ (1 + (rate − 1) ⊙ k_a)`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn wkv7_prepare(&self, weights: &Wkv7Weights, d: usize, [w, k, a, kappa]: [&mut [f32]; 4]) {
        let width = weights.w0.len();
        let all = [&weights.w0, &weights.a0, &weights.k_k, &weights.k_a];
        assert!(all.iter().all(|x| x.len() == width) && width.is_multiple_of(d), "wkv7: weights");
        assert!(d.is_multiple_of(LANES), "wkv7: heads of {d}");
        let n = w.len();
        assert!(n.is_multiple_of(width), "wkv7: whole rows");
        assert!(k.len() == n && a.len() == n && kappa.len() == n, "wkv7: lengths");
        let [w, k, a, kappa] = [w, k, a, kappa].map(|x| Rows::new(x, d));
        let n_heads = width / d;
        self.for_rows(n / d, 8 * d, &|heads| {
            for h in heads {
                let weights = all.map(|x| &x[h % n_heads * d..][..d]);
                // SAFETY: `for_rows` hands out each head of each row once.
                let [w, k, a, kappa] = [&w, &k, &a, &kappa].map(|x| unsafe { x.rows(h..h + 1) });
                (self.kernels().wkv7_prepare)(&mut Wkv7Head { w, k, a, kappa, weights });
            }
        });
    }

    /// Runs the recurrence over the rows of `parts`, from their states (`[n_slots, n_heads * d * d]`), which
    /// follow. `out` is `[n_rows, n_heads * d]`.
    ///
    /// # Panics
    /// If shapes disagree, `d` is no multiple of 16, or two parts share a slot.
    pub fn wkv7(
        &self,
        (n_heads, d): (usize, usize),
        parts: &[ScanPart],
        states: &mut [f32],
        rows: Wkv7Rows<'_>,
        out: &mut [f32],
    ) {
        let width = n_heads * d;
        assert!(d > 0 && d.is_multiple_of(LANES), "wkv7: heads of {d}");
        let n_rows = out.len() / width;
        assert_eq!(out.len(), n_rows * width, "wkv7: length of out");
        for x in [rows.r, rows.w, rows.k, rows.v, rows.kappa, rows.kappa_a] {
            assert_eq!(x.len(), out.len(), "wkv7: lengths");
        }
        ScanPart::check(parts, n_rows, states.len() / (width * d), "wkv7");
        let states = States::new(states, width * d);
        let out = Rows::new(out, 1);
        self.for_units(parts, width / LANES, 2 * LANES * d, &|part, tile| {
            let value = tile * LANES;
            let head = value / d * d;
            // SAFETY: no two parts have a slot in common (checked), and each tile of one is handed out once.
            let state = unsafe { states.part(part.slot, value * d..(value + LANES) * d) };
            let state = state.as_chunks_mut().0;
            (self.kernels().wkv7)(&mut Wkv7Tile {
                part,
                state,
                rows,
                width,
                d,
                head,
                value,
                out: &out,
            });
        });
    }

    /// `out += v · Σ_j r[j] · k[j] · r_k[j]`, head by head: all are `[n_rows, n_heads * d]`, `r_k` one row.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn wkv7_bonus(&self, out: &mut [f32], d: usize, rows: Wkv7Rows<'_>, r_k: &[f32]) {
        let n_heads = r_k.len() / d;
        assert!(d.is_multiple_of(LANES), "wkv7: heads of {d}");
        assert!(rows.r.len() == out.len() && rows.k.len() == out.len(), "wkv7: lengths");
        assert!(rows.v.len() == out.len() && out.len().is_multiple_of(r_k.len()), "wkv7: lengths");
        let (bonus, Wkv7Rows { r, k, v, .. }) = (self.kernels().wkv7_bonus, rows);
        self.each_row(out, d, "wkv7_bonus", &|i, out| {
            let head = |x| head_of(x, i * d, d);
            bonus(out, [head(r), head(k), head(v), &r_k[i % n_heads * d..][..d]]);
        });
    }
}

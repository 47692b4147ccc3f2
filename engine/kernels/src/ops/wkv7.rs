//! The time mixing of RWKV-7, tiles of heads spread over the threads, and what stands around it.

use crate::compute::Compute;
use crate::simd::LANES;
use crate::tiles::out_rows::Rows;
use crate::tiles::scan::ScanPart;
use crate::tiles::wkv7::{Wkv7Head, Wkv7Rows, Wkv7Tile, Wkv7Weights, head_of};

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
        for x in [rows.r, rows.w, rows.k, rows.v, rows.kappa, rows.kappa_a] {
            assert_eq!(x.len(), out.len(), "wkv7: lengths");
        }
        self.for_values("wkv7", (n_heads, d), parts, (states, out), &|part, value, state, out| {
            let head = value / d * d;
            (self.kernels().wkv7)(&mut Wkv7Tile { part, state, rows, width, d, head, value, out });
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

//! The time mixing of RWKV-7, tiles of heads spread over the threads, and what stands around it.

use brigade_ops::{Host, Wkv7, Wkv7Bonus, Wkv7Prepare, Wkv7Weights};

use super::HeadStates;
use crate::compute::Compute;
use crate::tiles::out_rows::Rows;
use crate::tiles::scan::wkv7::{Wkv7Head, Wkv7Tile, head_of};

impl Compute {
    /// Runs the op [`Wkv7Prepare`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn wkv7_prepare(&self, op: Wkv7Prepare<'_, Host>) {
        op.check();
        let Wkv7Prepare { weights: Wkv7Weights { w0, a0, k_k, k_a }, d, w, k, a, kappa } = op;
        let (n, n_heads) = (w.len(), w0.len() / d);
        let [w, k, a, kappa] = [w, k, a, kappa].map(|x| Rows::new(x, d));
        self.for_rows(n / d, 8 * d, &|heads| {
            for h in heads {
                let weights = [w0, a0, k_k, k_a].map(|x| &x[h % n_heads * d..][..d]);
                // SAFETY: `for_rows` hands out each head of each row once.
                let [w, k, a, kappa] = [&w, &k, &a, &kappa].map(|x| unsafe { x.rows(h..h + 1) });
                (self.kernels().wkv7_prepare)(&mut Wkv7Head { w, k, a, kappa, weights });
            }
        });
    }

    /// Runs the op [`Wkv7`].
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn wkv7(&self, op: Wkv7<'_, Host>) {
        op.check();
        let Wkv7 { n_heads, d, parts, states, rows, out } = op;
        let width = n_heads * d;
        let heads = HeadStates { n_heads, d, states };
        self.for_values(heads, parts, out, &|part, value, state, out| {
            let head = value / d * d;
            (self.kernels().wkv7)(&mut Wkv7Tile { part, state, rows, width, d, head, value, out });
        });
    }

    /// Runs the op [`Wkv7Bonus`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn wkv7_bonus(&self, op: Wkv7Bonus<'_, Host>) {
        op.check();
        let Wkv7Bonus { out, d, rows, r_k } = op;
        let (bonus, n_heads) = (self.kernels().wkv7_bonus, r_k.len() / d);
        self.each_row(out, d, "wkv7_bonus", &|i, out| {
            let head = |x| head_of(x, i * d, d);
            let r_k = &r_k[i % n_heads * d..][..d];
            bonus(out, [head(rows.r), head(rows.k), head(rows.v), r_k]);
        });
    }
}

//! Attention over depth. In models that do not simply add up what their blocks return, a row reads a mixture
//! of rows that were kept on its way through the layers.

use crate::compute::Compute;
use crate::tiles::attention::depth::DepthRow;
use crate::tiles::out_rows::Rows;

impl Compute {
    /// Makes each row of `out` a mixture of that row of all `sources` (`[n, d]` each, `d = score.len()`): `out = Σ_i
    /// a_i v_i` with `a = softmax(z)` and `z_i = score · v_i / sqrt(mean(v_i²) + eps)`. The rows are normed for their
    /// scores only, and mixed as they are. Sources are summed in their order.
    pub fn attend_depth(&self, sources: &[&[f32]], score: &[f32], eps: f32, out: &mut [f32]) {
        let (d, len) = (score.len(), out.len());
        assert!(!sources.is_empty(), "attend_depth: no source");
        assert!(d > 0 && len.is_multiple_of(d), "attend_depth: {len} values in rows of {d}");
        assert!(sources.iter().all(|source| source.len() == len), "attend_depth: lengths");
        let attend = self.kernels().attend_depth;
        let rows = Rows::new(out, d);
        self.for_rows(len / d, 2 * sources.len() * d, &|range| {
            let mut weights = vec![0.0; sources.len()];
            for r in range {
                let of_row: Vec<_> = sources.iter().map(|source| &source[r * d..][..d]).collect();
                // SAFETY: `for_rows` hands out each row once.
                let out = unsafe { rows.rows(r..r + 1) };
                attend(DepthRow { sources: &of_row, score, eps, weights: &mut weights, out });
            }
        });
    }
}

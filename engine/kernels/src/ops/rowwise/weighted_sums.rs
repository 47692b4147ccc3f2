//! Weighted sums of rows of several sources.

use brigade_shapes::{SumStart, WeightsAt};

use crate::compute::Compute;

impl Compute {
    /// `out[r, c] = start + Σ_k x_k[r, c] w[r, k]` in the order of the sources, each sum and product rounded by itself; `out` is
    /// `[n, d]`. Row `r` of a source starts at value `r * stride`.
    ///
    /// # Panics
    /// If a row or a weight is not there.
    pub fn weigh(
        &self,
        out: &mut [f32],
        d: usize,
        start: SumStart,
        (sources, stride): (&[&[f32]], usize),
        (weights, at): (&[f32], WeightsAt),
    ) {
        self.fill_rows(out, d, &|row, out| {
            if start == SumStart::Zero {
                out.fill(0.0);
            }
            for (k, source) in sources.iter().enumerate() {
                let source = &source[row * stride..][..d];
                let weights = &weights[at.of(row, k)..];
                let sums = out.iter_mut().zip(source);
                if at.by_column {
                    sums.zip(&weights[..d]).for_each(|((sum, x), weight)| *sum += x * weight);
                } else {
                    let weight = weights[0];
                    sums.for_each(|(sum, x)| *sum += x * weight);
                }
            }
        });
    }
}

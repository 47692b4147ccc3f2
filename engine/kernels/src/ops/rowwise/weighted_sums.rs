//! Weighted sums of rows of several sources.

use brigade_ops::{Host, Weigh};
use brigade_shapes::SumStart;

use crate::compute::Compute;

impl Compute {
    /// Runs the op [`Weigh`].
    ///
    /// # Panics
    /// If a row or a weight is not there.
    pub fn weigh(&self, op: Weigh<'_, Host>) {
        let Weigh { out, d, start, sources, firsts, stride, weights, at } = op;
        self.fill_rows(out, d, &|row, out| {
            if start == SumStart::Zero {
                out.fill(0.0);
            }
            for (k, (source, first)) in sources.iter().zip(&firsts).enumerate() {
                let source = &source[first + row * stride..][..d];
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

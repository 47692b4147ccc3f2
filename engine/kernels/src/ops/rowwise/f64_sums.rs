//! Functions of rows with sums in f64, in the order of the columns.

use brigade_ops::{Host, ProductRoots};

use crate::compute::Compute;

impl Compute {
    /// Gives each row of `x` (`[n, d]`) the magnitude of that of `like`: `x * |like| / |x|`, magnitudes summed in f64 and rounded
    /// to f32.
    ///
    /// # Panics
    /// If `like` has fewer rows.
    pub fn match_magnitudes(&self, x: &mut [f32], like: &[f32], d: usize) {
        self.fill_rows(x, d, &|row, x| {
            let (target, own) = (magnitude(&like[row * d..][..d]), magnitude(x));
            x.iter_mut().for_each(|x| *x = *x * target / own);
        });
    }

    /// Takes off each value of rows `x` (`[n, d]`) the row's mean and so many of its standard deviations, both in f64; what is
    /// below 0 then becomes 0.
    pub fn keep_above(&self, x: &mut [f32], d: usize, deviations: f32) {
        self.fill_rows(x, d, &|_, row| {
            let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / d as f64;
            let square = |x: &f32| (f64::from(*x) - mean) * (f64::from(*x) - mean);
            let deviation = (row.iter().map(square).sum::<f64>() / (d as f64 - 1.0)).sqrt();
            let least = (mean + deviation * f64::from(deviations)) as f32;
            row.iter_mut().for_each(|x| *x = (*x - least).max(0.0));
        });
    }

    /// Runs the op [`ProductRoots`].
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn product_roots(&self, op: ProductRoots<'_, Host>) {
        let ProductRoots { x, y, d, divisor, least, out } = op;
        self.fill_rows(out, 1, &|row, out| {
            let product = |(x, y): (&f32, &f32)| f64::from(*x) * f64::from(*y);
            let row = row * d..(row + 1) * d;
            let score = x[row.clone()].iter().zip(&y[row]).map(product).sum::<f64>() as f32;
            let score = score / divisor;
            let root = score.abs().max(least).sqrt();
            out[0] = if score == 0.0 { 0.0 } else { root.copysign(score) };
        });
    }
}

fn magnitude(row: &[f32]) -> f32 {
    (row.iter().map(|x| f64::from(x * x)).sum::<f64>() as f32).sqrt()
}

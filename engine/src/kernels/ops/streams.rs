//! What streams of a token weigh that every block reads and writes.

use brigade_gpu::StreamShape;

use crate::kernels::compute::Compute;

impl Compute {
    /// Makes weights of the numbers `weights` (`[n_rows, base.len()]`), in place. The first `n` of each row become
    /// `sigmoid(scale[0] m + base) + eps`. The next `n` become `magnitude sigmoid(scale[1] m + base) + post_eps`. The others
    /// are a matrix `[n, n]` of `scale[2] m + base`, which is made one whose rows and columns sum to one, nearly.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn stream_weights(
        &self,
        shape: &StreamShape,
        base: &[f32],
        scale: &[f32],
        weights: &mut [f32],
    ) {
        let n = shape.n;
        assert!(shape.fits(base.len()), "stream_weights: {} of {n} streams", base.len());
        self.fill_rows(weights, base.len(), &|_, row| {
            let shifted = |kind: usize, m: f32, at: usize| scale[kind] * m + base[at];
            for (at, m) in row[..n].iter_mut().enumerate() {
                *m = sigmoid(shifted(0, *m, at)) + shape.eps;
            }
            let (post, mix) = row[n..].split_at_mut(n.min(base.len() - n));
            for (at, m) in (n..).zip(post) {
                *m = sigmoid(shifted(1, *m, at)) * shape.magnitude + shape.post_eps;
            }
            for (at, m) in (2 * n..).zip(&mut *mix) {
                *m = shifted(2, *m, at);
            }
            if let Some(rounds) = shape.rounds.filter(|_| !mix.is_empty()) {
                doubly_stochastic(mix, n, rounds, shape.eps);
            }
        });
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + libm::expf(-x))
}

/// Makes of `[n, n]` numbers a matrix whose rows and columns all sum to one, nearly: a softmax of each row, then the
/// columns are divided by their sums, and `rounds - 1` times the rows and then the columns. (Sinkhorn and Knopp; arXiv
/// 2512.24880, section 4.2.)
fn doubly_stochastic(matrix: &mut [f32], n: usize, rounds: usize, eps: f32) {
    for row in matrix.chunks_exact_mut(n) {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|x| *x = libm::expf(*x - most));
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|x| *x = *x / sum + eps);
    }
    for round in 0..rounds.max(1) {
        if round > 0 {
            for row in matrix.chunks_exact_mut(n) {
                let sum = row.iter().sum::<f32>() + eps;
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        for column in 0..n {
            let sum = matrix[column..].iter().step_by(n).sum::<f32>() + eps;
            matrix[column..].iter_mut().step_by(n).for_each(|x| *x /= sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_columns_sum_to_one() {
        let mut matrix: Vec<f32> = (0..16).map(|i| ((i * 7 % 11) as f32 - 5.0) / 3.0).collect();
        doubly_stochastic(&mut matrix, 4, 20, 1e-6);
        for i in 0..4 {
            let row: f32 = matrix[i * 4..][..4].iter().sum();
            let column: f32 = matrix[i..].iter().step_by(4).sum();
            assert!((row - 1.0).abs() < 1e-4 && (column - 1.0).abs() < 1e-4, "{row} {column}");
        }
        assert!(matrix.iter().all(|x| *x > 0.0));
        // One round leaves the columns at one.
        let mut once: Vec<f32> = (0..9).map(|i| (i * i % 7) as f32 / 4.0).collect();
        doubly_stochastic(&mut once, 3, 1, 0.0);
        let column: f32 = once.iter().step_by(3).sum();
        assert!((column - 1.0).abs() < 1e-6);
        let row: f32 = once[..3].iter().sum();
        assert!((row - 1.0).abs() > 1e-3, "rows come second: {row}");
    }
}

//! Weights of a token's streams, by which every block reads and writes them.

use brigade_shapes::StreamShape;

use crate::compute::Compute;

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

/// Turns `[n, n]` numbers into a matrix whose rows and columns all sum to nearly one. First comes a softmax of each
/// row, and the columns are divided by their sums. Then the rows and after them the columns are divided, `rounds - 1`
/// times. (Sinkhorn and Knopp; arXiv 2512.24880, section 4.2.)
pub fn doubly_stochastic(matrix: &mut [f32], n: usize, rounds: usize, eps: f32) {
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

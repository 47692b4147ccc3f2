//! Scores and choice of whole blocks by the means of their keys, in plain f64. Tests compare the kernels with them.

/// The mean of a block's keys, normed with `weight` and `eps`.
pub(crate) fn normed_mean(keys: &[Vec<f32>], weight: &[f32], eps: f64) -> Vec<f64> {
    let mean = |j: usize| keys.iter().map(|key| f64::from(key[j])).sum::<f64>() / keys.len() as f64;
    let mean: Vec<f64> = (0..weight.len()).map(mean).collect();
    let square = mean.iter().map(|x| x * x).sum::<f64>() / mean.len() as f64;
    let factor = 1.0 / (square + eps).sqrt();
    mean.iter().zip(weight).map(|(x, w)| x * factor * f64::from(*w)).collect()
}

/// `Σ_h max(q[h] · key, 0)`; `q` is `[n_head, key.len()]`.
pub(crate) fn score(q: &[f32], key: &[f64]) -> f64 {
    let product = |q: &[f32]| q.iter().zip(key).map(|(q, k)| f64::from(*q) * k).sum::<f64>();
    q.chunks_exact(key.len()).map(|q| product(q).max(0.0)).sum()
}

//! Scores of an index in plain f64. Tests compare the kernels with them.

/// `Σ_h weights[h] * max(q[h] · key, 0)`; `q` is `[n_head, key.len()]`.
pub(crate) fn score(q: &[f32], weights: &[f32], key: &[f32]) -> f64 {
    let product =
        |q: &[f32]| q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
    q.chunks_exact(key.len()).zip(weights).map(|(q, w)| f64::from(*w) * product(q).max(0.0)).sum()
}

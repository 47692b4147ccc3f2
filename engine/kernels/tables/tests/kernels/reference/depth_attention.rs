//! Attention over depth in plain f64. Tests compare the kernels with it.

use super::ops;

/// The mixture that one row reads of its `sources`.
pub(crate) fn attend_depth(sources: &[&[f32]], score: &[f32], eps: f32) -> Vec<f64> {
    let scores: Vec<f64> =
        sources.iter().map(|source| ops::rms_norm(source, score, eps).iter().sum()).collect();
    let weights = ops::softmax(&scores);
    let at = |j: usize| sources.iter().zip(&weights).map(|(v, a)| f64::from(v[j]) * a).sum();
    (0..score.len()).map(at).collect()
}

//! Attention of one query over rows of keys and values, plainly, in f64.

use super::ops::softmax;

/// `Σ softmax(scale * q·k) v` over the given keys and values.
pub(crate) fn attend(q: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>], scale: f32) -> Vec<f64> {
    let products =
        |k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
    let scores: Vec<f64> = keys.iter().map(|k| f64::from(scale) * products(k)).collect();
    let weights = softmax(&scores);
    let mut out = vec![0.0; values[0].len()];
    for (w, v) in weights.iter().zip(values) {
        for (out, v) in out.iter_mut().zip(v) {
            *out += w * f64::from(*v);
        }
    }
    out
}

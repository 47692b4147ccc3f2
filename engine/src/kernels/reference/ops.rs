//! Elementwise ops, norms, softmax and rotation, plainly, in f64.

/// `x / sqrt(mean(x²) + eps) * weight`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(x, w)| f64::from(*x) * factor * f64::from(*w)).collect()
}

/// `g / (1 + e^-g) * u`.
pub(crate) fn silu_mul(gate: f32, up: f32) -> f64 {
    let gate = f64::from(gate);
    gate / (1.0 + (-gate).exp()) * f64::from(up)
}

/// Softmax of a row.
pub(crate) fn softmax(x: &[f64]) -> Vec<f64> {
    let top = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = x.iter().map(|v| (v - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

/// A pair turned by an angle.
pub(crate) fn rotate(x0: f32, x1: f32, angle: f64) -> (f64, f64) {
    let (x0, x1, (sin, cos)) = (f64::from(x0), f64::from(x1), angle.sin_cos());
    (x0 * cos - x1 * sin, x0 * sin + x1 * cos)
}

//! Elementwise ops, norms, softmax and rotation in plain f64. Tests compare the kernels with them.

use brigade_kernels::{GateBound, GateBounds, SwiGluClamp, SwiGluLimit, Xielu};

/// `x / sqrt(mean(x²) + eps) * weight`.
pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (mean + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(x, w)| f64::from(*x) * factor * f64::from(*w)).collect()
}

/// `x / sqrt(sum(x²) + eps)`.
pub(crate) fn l2_norm(x: &[f32], eps: f32) -> Vec<f64> {
    let sum = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    let factor = 1.0 / (sum + f64::from(eps)).sqrt();
    x.iter().map(|x| f64::from(*x) * factor).collect()
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `ln(1 + e^x)`.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// `max(x, 0)²`.
pub(crate) fn relu_squared(x: f64) -> f64 {
    x.max(0.0).powi(2)
}

/// `g / (1 + e^-g) * u`.
pub(crate) fn silu_mul(gate: f32, up: f32) -> f64 {
    let gate = f64::from(gate);
    gate / (1.0 + (-gate).exp()) * f64::from(up)
}

/// `beta * tanh(g / beta) * sigmoid(g) * linear * tanh(u / linear)`; without `linear`, times `u`.
pub(crate) fn bounded_gate_mul(gate: f32, up: f32, bounds: GateBounds) -> f64 {
    let bounded = |x: f32, bound: f32| {
        let (x, bound) = (f64::from(x), f64::from(bound));
        bound * (x / bound).tanh()
    };
    let up = bounds.linear.map_or(f64::from(up), |linear| bounded(up, linear));
    bounded(gate, bounds.gate) * sigmoid(f64::from(gate)) * up
}

/// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³)))`.
pub(crate) fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

/// `min(g, limit) sigmoid(alpha min(g, limit)) (clamp(u, -limit, limit) + 1)`.
pub(crate) fn clamped_swiglu_mul(gate: f32, up: f32, clamp: SwiGluClamp) -> f64 {
    let (alpha, limit) = (f64::from(clamp.alpha), f64::from(clamp.limit));
    let gate = f64::from(gate).min(limit);
    gate * sigmoid(alpha * gate) * (f64::from(up).clamp(-limit, limit) + 1.0)
}

/// `min(silu(g), limit) clamp(u, -limit, limit)`, or with the bound inside the activation.
pub(crate) fn limited_swiglu_mul(gate: f32, up: f32, limit: SwiGluLimit) -> f64 {
    let (gate, bound) = (f64::from(gate), f64::from(limit.limit));
    let silu = |x: f64| x * sigmoid(x);
    let gate = match limit.gate {
        GateBound::Before => silu(gate.min(bound)),
        GateBound::After => silu(gate).min(bound),
    };
    gate * f64::from(up).clamp(-bound, bound)
}

/// `alpha_p x² + beta x` above 0, elsewhere `alpha_n (exp(min(x, eps)) - 1 - x) + beta x`.
pub(crate) fn xielu(x: f32, shape: Xielu) -> f64 {
    let [alpha_n, alpha_p, beta, eps] =
        [shape.alpha_n, shape.alpha_p, shape.beta, shape.eps].map(f64::from);
    let x = f64::from(x);
    if x > 0.0 {
        alpha_p * x * x + beta * x
    } else {
        alpha_n * (x.min(eps).exp_m1() - x) + beta * x
    }
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

/// `(x - mean) / sqrt(variance + eps) * weight + bias`.
pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f64> {
    let x: Vec<f64> = x.iter().copied().map(f64::from).collect();
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let factor = 1.0 / (variance + f64::from(eps)).sqrt();
    let affine = weight.iter().zip(bias).map(|(w, b)| (f64::from(*w), f64::from(*b)));
    x.iter().zip(affine).map(|(x, (w, b))| (x - mean) * factor * w + b).collect()
}

//! Causal depthwise convolution in plain f64. Tests compare the kernels with it.

/// `x` and the result are `[n, channels]`, `weight` is `[channels, taps]`, `before` the
/// `[taps - 1, channels]` rows that came before.
pub(crate) fn conv(
    weight: &[f32],
    taps: usize,
    bias: &[f32],
    silu: bool,
    before: &[f32],
    x: &[f32],
) -> Vec<f64> {
    let channels = bias.len();
    let rows: Vec<f32> = before.iter().chain(x).copied().collect();
    let mut out = Vec::new();
    for t in 0..x.len() / channels {
        for c in 0..channels {
            let mut y = f64::from(bias[c]);
            for j in 0..taps {
                y += f64::from(weight[c * taps + j]) * f64::from(rows[(t + j) * channels + c]);
            }
            out.push(if silu { y / (1.0 + (-y).exp()) } else { y });
        }
    }
    out
}

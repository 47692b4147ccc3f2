//! Attention of one query over rows of keys and values, in plain f64. Tests compare the kernels with it.

use super::ops::softmax;

/// What [`attend`] changes of the softmax.
#[derive(Clone, Copy, Default)]
pub(crate) struct Variant {
    pub(crate) softcap: Option<f32>,
    pub(crate) sink: Option<f32>,
    /// What a score loses for every position between it and the last one.
    pub(crate) slope: Option<f32>,
}

/// `Σ softmax(scale * q·k) v` over the given keys and values; the scores bounded by the cap, where there is
/// one, and lowered by their distance from the last; the sink a further score without a value.
pub(crate) fn attend(
    q: &[f32],
    keys: &[Vec<f32>],
    values: &[Vec<f32>],
    scale: f32,
    variant: Variant,
) -> Vec<f64> {
    let products =
        |k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
    let capped = |score: f64| match variant.softcap.map(f64::from) {
        Some(cap) => cap * (score / cap).tanh(),
        None => score,
    };
    let slope = variant.slope.map_or(0.0, f64::from);
    let score = |(i, k): (usize, &Vec<f32>)| {
        capped(f64::from(scale) * products(k)) - slope * (keys.len() - 1 - i) as f64
    };
    let mut scores: Vec<f64> = keys.iter().enumerate().map(score).collect();
    scores.extend(variant.sink.map(f64::from));
    let weights = softmax(&scores);
    let mut out = vec![0.0; values[0].len()];
    for (w, v) in weights.iter().zip(values) {
        for (out, v) in out.iter_mut().zip(v) {
            *out += w * f64::from(*v);
        }
    }
    out
}

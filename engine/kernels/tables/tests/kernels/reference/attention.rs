//! Attention of one query over rows of keys and values, in plain f64. Tests compare the kernels with it.

use super::ops::softmax;

/// Changes of [`attend`] to the softmax.
#[derive(Clone, Copy, Default)]
pub(crate) struct Variant<'a> {
    pub(crate) softcap: Option<f32>,
    pub(crate) sink: Option<f32>,
    /// Slope: a score loses so much for every position between it and the row's own.
    pub(crate) slope: Option<f32>,
    /// Biases by the distance from the row's own position. Farther ones count as the farthest.
    pub(crate) biases: Option<&'a [f32]>,
    /// Number of the key at the row's own position; `None`: the last.
    pub(crate) own: Option<usize>,
}

/// `Σ softmax(scale * q·k) v` over the given keys and values. A cap bounds the scores, and they change with the
/// distance. A sink is a further score without a value.
pub(crate) fn attend(
    q: &[f32],
    keys: &[Vec<f32>],
    values: &[Vec<f32>],
    scale: f32,
    variant: Variant<'_>,
) -> Vec<f64> {
    let products =
        |k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
    let capped = |score: f64| match variant.softcap.map(f64::from) {
        Some(cap) => cap * (score / cap).tanh(),
        None => score,
    };
    let slope = variant.slope.map_or(0.0, f64::from);
    let own = variant.own.unwrap_or(keys.len() - 1) as isize;
    let bias = |ahead: isize| {
        let of = |biases: &[f32]| {
            let reach = (biases.len() / 2) as isize;
            f64::from(biases[(ahead.clamp(-reach, reach) + reach) as usize])
        };
        variant.biases.map_or(0.0, of)
    };
    let score = |(i, k): (usize, &Vec<f32>)| {
        let ahead = i as isize - own;
        capped(f64::from(scale) * products(k)) - slope * ahead.unsigned_abs() as f64 + bias(ahead)
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

//! The key of a pool in plain f64. Tests compare the kernels with it.

/// `Σ_i softmax_i(gates[i] + bias[i]) * keys[i]`, element by element; `bias` is `[keys.len(), dim]`.
pub(crate) fn pooled(keys: &[Vec<f32>], gates: &[Vec<f32>], bias: &[f32]) -> Vec<f64> {
    let dim = bias.len() / keys.len();
    let of_element = |e: usize| {
        let gate = |i: usize| f64::from(gates[i][e]) + f64::from(bias[i * dim + e]);
        let weights: Vec<f64> = (0..keys.len()).map(|i| gate(i).exp()).collect();
        let total: f64 = weights.iter().sum();
        weights.iter().zip(keys).map(|(w, key)| w * f64::from(key[e])).sum::<f64>() / total
    };
    (0..dim).map(of_element).collect()
}

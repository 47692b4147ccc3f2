//! Gated pools in plain f64. Tests compare the kernels with them.

use super::ops;
use brigade_kernels::GatedRow;

/// The row that is made of one pool's rows.
pub(crate) fn pool_gated(rows: &[GatedRow<&[f32]>]) -> Vec<f64> {
    let column = |j: usize| {
        let gates: Vec<f64> = rows.iter().map(|row| f64::from(row.gates[j])).collect();
        let weights = ops::softmax(&gates);
        rows.iter().zip(weights).map(|(row, a)| a * f64::from(row.values[j])).sum()
    };
    (0..rows[0].values.len()).map(column).collect()
}

/// `Σ_i softmax_i(gates[i] + bias[i]) * keys[i]`, element by element; `bias` is `[keys.len(), dim]`.
pub(crate) fn pooled(keys: &[Vec<f32>], gates: &[Vec<f32>], bias: &[f32]) -> Vec<f64> {
    let dim = bias.len() / keys.len();
    let of_element = |e: usize| {
        let gate = |i: usize| f64::from(gates[i][e]) + f64::from(bias[i * dim + e]);
        let weights = ops::softmax(&(0..keys.len()).map(gate).collect::<Vec<_>>());
        weights.iter().zip(keys).map(|(w, key)| w * f64::from(key[e])).sum()
    };
    (0..dim).map(of_element).collect()
}

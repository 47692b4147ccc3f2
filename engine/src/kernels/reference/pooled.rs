//! Gated pools in plain f64. Tests compare the kernel with it.

use super::ops;
use crate::kernels::GatedRow;

/// What is made of one pool's rows.
pub(crate) fn pool_gated(rows: &[GatedRow<'_>]) -> Vec<f64> {
    let column = |j: usize| {
        let gates: Vec<f64> = rows.iter().map(|row| f64::from(row.gates[j])).collect();
        let weights = ops::softmax(&gates);
        rows.iter().zip(weights).map(|(row, a)| a * f64::from(row.values[j])).sum()
    };
    (0..rows[0].values.len()).map(column).collect()
}

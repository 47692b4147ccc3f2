//! Small matrices that are computed with in f64, a row at a time.

use crate::gguf::{Gguf, TensorFiles, TensorInfo};
use crate::quant;
use crate::spec::ModelError;

/// A matrix with its bias.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix {
    /// `[rows, cols]`.
    weight: Vec<f32>,
    /// `[rows]`; none: empty.
    bias: Vec<f32>,
    cols: usize,
}

impl Matrix {
    /// `None` where the model lacks it.
    pub fn read(
        model: &Gguf,
        files: &TensorFiles,
        name: &str,
        bias: &str,
    ) -> Result<Option<Self>, ModelError> {
        let Some(tensor) = model.tensor(name) else { return Ok(None) };
        let (cols, rows) = (tensor.row_len(), tensor.n_rows());
        if rows == 0 || cols == 0 {
            return Err(ModelError::Bad(format!("tensor {name} is empty")));
        }
        let bias = match model.tensor(bias) {
            Some(tensor) => vector(files, tensor, rows)?,
            None => Vec::new(),
        };
        Ok(Some(Self { weight: values(files, tensor)?, bias, cols }))
    }

    #[cfg(test)]
    pub fn of(weight: &[f32], bias: &[f32], cols: usize) -> Self {
        Self { weight: weight.to_vec(), bias: bias.to_vec(), cols }
    }

    /// Values that it makes.
    pub fn rows(&self) -> usize {
        self.weight.len() / self.cols
    }

    /// Values that it makes them of.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// `[rows]` of `row` `[cols]`.
    pub fn apply(&self, row: &[f64]) -> Vec<f64> {
        let dot = |weights: &[f32]| -> f64 {
            weights.iter().zip(row).map(|(w, v)| f64::from(*w) * v).sum()
        };
        let bias = self.bias.iter().map(|b| f64::from(*b)).chain(std::iter::repeat(0.0));
        self.weight.chunks_exact(self.cols).zip(bias).map(|(w, b)| dot(w) + b).collect()
    }
}

/// The values of a tensor of `n`.
pub(super) fn vector(
    files: &TensorFiles,
    tensor: &TensorInfo,
    n: usize,
) -> Result<Vec<f32>, ModelError> {
    if tensor.n_elems() != n {
        let (name, found) = (&tensor.name, tensor.n_elems());
        return Err(ModelError::Bad(format!("tensor {name} has {found} values, {n} are needed")));
    }
    values(files, tensor)
}

fn values(files: &TensorFiles, tensor: &TensorInfo) -> Result<Vec<f32>, ModelError> {
    let mut bytes = vec![0; tensor.nbytes as usize];
    files.read(tensor, 0, &mut bytes)?;
    let mut values = vec![0.0; tensor.n_elems()];
    quant::require_format(tensor.ty, &tensor.name)?.dequantize_row(&bytes, &mut values)?;
    Ok(values)
}

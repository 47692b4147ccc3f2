//! The head of a reranker: it judges a text by one row, where other heads continue the text.
//!
//! A stage does not run it. Whoever has the row that the last norm makes of a text's last token, and the model's
//! file, has all it takes.

use crate::error::ModelError;
use crate::gguf::{Gguf, TensorFiles, TensorInfo};
use crate::quant;

/// Begins the names of its tensors, which no stage needs.
pub const STEM: &str = "cls.output.";

const WEIGHT: &str = "cls.output.weight";
const BIAS: &str = "cls.output.bias";

/// Most classes of a model.
const MAX_CLASSES: usize = 1024;

/// Weights of a classification head.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    /// `[n_classes, n_embd]`.
    weight: Vec<f32>,
    /// `[n_classes]`; none: empty.
    bias: Vec<f32>,
    n_embd: usize,
}

impl Classifier {
    /// Of a model and its open files; `None` where the model only continues texts.
    ///
    /// # Errors
    /// Its tensors do not fit each other, or cannot be read.
    pub fn read(model: &Gguf, files: &TensorFiles) -> Result<Option<Self>, ModelError> {
        let Some(tensor) = model.tensor(WEIGHT) else { return Ok(None) };
        let (n_embd, n_classes) = (tensor.row_len(), tensor.n_rows());
        if n_classes == 0 || n_classes > MAX_CLASSES {
            return Err(ModelError::Bad(format!(
                "tensor {WEIGHT} has {n_classes} rows: 1 to {MAX_CLASSES} are possible"
            )));
        }
        let bias = model.tensor(BIAS).map(|tensor| values(files, tensor)).transpose()?;
        let bias = bias.unwrap_or_default();
        if !bias.is_empty() && bias.len() != n_classes {
            let found = bias.len();
            return Err(ModelError::Bad(format!(
                "tensor {BIAS} has {found} values for {n_classes} classes"
            )));
        }
        Ok(Some(Self { weight: values(files, tensor)?, bias, n_embd }))
    }

    /// Values of a row that it judges.
    pub fn n_embd(&self) -> usize {
        self.n_embd
    }

    /// How well the text fits, by `row` `[n_embd]`: the first class's probability, or what the only class says. The
    /// first class of a reranker is the "yes".
    pub fn score(&self, row: &[f32]) -> f32 {
        let dot = |weights: &[f32]| -> f64 {
            weights.iter().zip(row).map(|(w, v)| f64::from(*w) * f64::from(*v)).sum()
        };
        let bias = self.bias.iter().map(|b| f64::from(*b)).chain(std::iter::repeat(0.0));
        let logits: Vec<f64> =
            self.weight.chunks_exact(self.n_embd).zip(bias).map(|(w, b)| dot(w) + b).collect();
        if let [only] = logits[..] {
            return only as f32;
        }
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let parts: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
        ((logits[0] - most).exp() / parts) as f32
    }
}

fn values(files: &TensorFiles, tensor: &TensorInfo) -> Result<Vec<f32>, ModelError> {
    let mut bytes = vec![0; tensor.nbytes as usize];
    files.read(tensor, 0, &mut bytes)?;
    let mut values = vec![0.0; tensor.n_elems()];
    quant::require_format(tensor.ty, &tensor.name)?.dequantize_row(&bytes, &mut values)?;
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(weight: &[f32], bias: &[f32]) -> Classifier {
        Classifier { weight: weight.to_vec(), bias: bias.to_vec(), n_embd: 2 }
    }

    #[test]
    fn two_classes_share_a_probability() {
        let row = [1.0, -2.0];
        // Logits 3 and 1.
        let yes = of(&[1.0, -1.0, 1.0, 0.0], &[]).score(&row);
        assert!((f64::from(yes) - 1.0 / (1.0 + (-2f64).exp())).abs() < 1e-7);
        let no = of(&[1.0, 0.0, 1.0, -1.0], &[]).score(&row);
        assert!((yes + no - 1.0).abs() < 1e-7);
        // A bias of 2 makes them equal.
        assert_eq!(of(&[1.0, -1.0, 1.0, 0.0], &[0.0, 2.0]).score(&row), 0.5);
    }

    #[test]
    fn one_class_says_what_it_says() {
        assert_eq!(of(&[1.0, -1.0], &[0.5]).score(&[1.0, -2.0]), 3.5);
    }
}

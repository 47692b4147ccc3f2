//! The head of a reranker: it judges a text by one row, where other heads continue the text.
//!
//! The row is the one that the last norm makes: of a text's last token in a decoder, of its first token or the mean of all
//! in an encoder.

use crate::gguf::{Gguf, TensorFiles};
use crate::spec::ModelError;

use super::matrix::{Matrix, vector};

const DENSE: &str = "cls.weight";
const DENSE_BIAS: &str = "cls.bias";
const NORM: &str = "cls.norm.weight";
const WEIGHT: &str = "cls.output.weight";
const BIAS: &str = "cls.output.bias";

/// Most classes of a model.
const MAX_CLASSES: usize = 1024;

/// The architecture whose head has GELU and reads the mean of all rows.
const MODERN_BERT: &str = "modern-bert";

/// llama.cpp's number of the mean among the ways to make one vector of a text's rows.
const MEAN: u32 = 1;

/// Weights of a classification head.
#[derive(Clone, Debug, PartialEq)]
pub struct Classifier {
    /// Layer before the classes.
    dense: Option<Dense>,
    /// `None` where the matrix before is all there is.
    classes: Option<Matrix>,
    /// Whether the classes share a probability: those of decoders, as `yes` and `no`.
    shares: bool,
    reads_mean: bool,
    n_embd: usize,
}

/// A matrix with an activation, and a LayerNorm where there is one.
#[derive(Clone, Debug, PartialEq)]
struct Dense {
    matrix: Matrix,
    activation: Activation,
    /// Weight and epsilon of the LayerNorm.
    norm: Option<(Vec<f32>, f32)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Activation {
    Tanh,
    Gelu,
}

impl Classifier {
    /// Reads the head of a model, an encoder or not, from its open files. `None` where the model has none: it continues
    /// texts, or makes vectors of them.
    ///
    /// # Errors
    /// The head's tensors do not fit each other, or cannot be read.
    pub fn read(
        model: &Gguf,
        is_encoder: bool,
        files: &TensorFiles,
    ) -> Result<Option<Self>, ModelError> {
        let dense = Matrix::read(model, files, DENSE, DENSE_BIAS)?;
        let classes = Matrix::read(model, files, WEIGHT, BIAS)?;
        let Some(n_embd) = dense.as_ref().or(classes.as_ref()).map(|first| first.cols()) else {
            return Ok(None);
        };
        let arch = model.architecture()?;
        let dense = match dense {
            Some(matrix) => Some(Dense::read(model, files, arch, matrix)?),
            None => None,
        };
        let before = dense.as_ref().map_or(n_embd, |dense| dense.matrix.rows());
        if let Some(classes) = &classes
            && (classes.rows() > MAX_CLASSES || classes.cols() != before)
        {
            return Err(ModelError::Bad(format!(
                "tensor {WEIGHT} has {} rows of {}: 1 to {MAX_CLASSES} of {before} are possible",
                classes.rows(),
                classes.cols()
            )));
        }
        let pooling = model.meta().opt_u32(&format!("{arch}.classifier.pooling_type"))?;
        let reads_mean = pooling.map_or(arch == MODERN_BERT, |pooling| pooling == MEAN);
        Ok(Some(Self { dense, classes, shares: !is_encoder, reads_mean, n_embd }))
    }

    /// Values of a row that it judges.
    pub fn n_embd(&self) -> usize {
        self.n_embd
    }

    /// Whether an encoder's head judges the mean of a text's rows, not the first one.
    pub fn reads_mean(&self) -> bool {
        self.reads_mean
    }

    /// Score of a text, of whose rows `row` `[n_embd]` is the head's input. It is the output of the first class,
    /// which is the "yes" of a reranker. For a decoder's classes it is the probability.
    pub fn score(&self, row: &[f32]) -> f32 {
        let row: Vec<f64> = row.iter().map(|v| f64::from(*v)).collect();
        let row = match &self.dense {
            Some(dense) => dense.apply(&row),
            None => row,
        };
        let logits = match &self.classes {
            Some(classes) => classes.apply(&row),
            None => row,
        };
        if logits.len() == 1 || !self.shares {
            return logits[0] as f32;
        }
        let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let parts: f64 = logits.iter().map(|logit| (logit - most).exp()).sum();
        ((logits[0] - most).exp() / parts) as f32
    }
}

impl Dense {
    fn read(
        model: &Gguf,
        files: &TensorFiles,
        arch: &str,
        matrix: Matrix,
    ) -> Result<Self, ModelError> {
        let norm = match model.tensor(NORM) {
            Some(tensor) => {
                let eps = model.meta().f32(&format!("{arch}.attention.layer_norm_epsilon"))?;
                Some((vector(files, tensor, matrix.rows())?, eps))
            }
            None => None,
        };
        let activation = if arch == MODERN_BERT { Activation::Gelu } else { Activation::Tanh };
        Ok(Self { matrix, activation, norm })
    }

    fn apply(&self, row: &[f64]) -> Vec<f64> {
        let mut row = self.matrix.apply(row);
        row.iter_mut().for_each(|v| *v = self.activation.of(*v));
        let Some((weight, eps)) = &self.norm else { return row };
        let n = row.len() as f64;
        let mean = row.iter().sum::<f64>() / n;
        let variance = row.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / n;
        let scale = 1.0 / (variance + f64::from(*eps)).sqrt();
        row.iter_mut().zip(weight).for_each(|(v, w)| *v = (*v - mean) * scale * f64::from(*w));
        row
    }
}

impl Activation {
    fn of(self, x: f64) -> f64 {
        match self {
            Self::Tanh => libm::tanh(x),
            Self::Gelu => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + libm::tanh(inner))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matrix(weight: &[f32], bias: &[f32]) -> Matrix {
        Matrix::of(weight, bias, 2)
    }

    fn of(weight: &[f32], bias: &[f32]) -> Classifier {
        let classes = Some(matrix(weight, bias));
        Classifier { dense: None, classes, shares: true, reads_mean: false, n_embd: 2 }
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
        let encoder = Classifier { shares: false, ..of(&[1.0, -1.0, 1.0, 0.0], &[]) };
        assert_eq!(encoder.score(&row), 3.0);
    }

    #[test]
    fn one_class_says_what_it_says() {
        assert_eq!(of(&[1.0, -1.0], &[0.5]).score(&[1.0, -2.0]), 3.5);
    }

    #[test]
    fn a_matrix_before_the_classes_bends_and_may_norm() {
        let dense = |activation, norm| Dense {
            matrix: matrix(&[1.0, 0.0, 0.0, 1.0], &[0.5, 0.0]),
            activation,
            norm,
        };
        let bent = |dense| Classifier { dense: Some(dense), shares: false, ..of(&[1.0, 1.0], &[]) };
        let tanh = bent(dense(Activation::Tanh, None)).score(&[0.5, -2.0]);
        assert!((f64::from(tanh) - (1f64.tanh() - 2f64.tanh())).abs() < 1e-6, "{tanh}");
        // GELU of 1 and of 0 are 0.8412 and 0; normed they are 1 and -1, and weigh 3 and 1.
        let norm = Some((vec![3.0, 1.0], 0.0));
        let normed = bent(dense(Activation::Gelu, norm)).score(&[0.5, 0.0]);
        assert!((f64::from(normed) - 2.0).abs() < 1e-6, "{normed}");
        let alone = Classifier { classes: None, ..bent(dense(Activation::Gelu, None)) };
        assert!((alone.score(&[0.5, 0.0]) - 0.841_192).abs() < 1e-5);
    }
}

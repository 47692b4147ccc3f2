//! Matrices that a text's vector goes through once it is pooled: the dense modules of sentence-transformers, as
//! EmbeddingGemma has two.

use crate::gguf::{Gguf, TensorFiles};
use crate::spec::ModelError;
use crate::spec::heads::PROJECTIONS;

use super::matrix::Matrix;

/// Matrices, one after the other, nothing between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Projections(Vec<Matrix>);

impl Projections {
    /// Reads the projections of a model whose rows have `n_embd` values, from its open files. `None` where the model
    /// has none.
    ///
    /// # Errors
    /// Matrices do not fit each other, or cannot be read.
    pub fn read(
        model: &Gguf,
        n_embd: usize,
        files: &TensorFiles,
    ) -> Result<Option<Self>, ModelError> {
        let mut matrices = Vec::new();
        let mut width = n_embd;
        for stem in PROJECTIONS {
            let name = format!("{stem}weight");
            let Some(matrix) = Matrix::read(model, files, &name, &format!("{stem}bias"))? else {
                continue;
            };
            if matrix.cols() != width {
                let cols = matrix.cols();
                return Err(ModelError::Bad(format!(
                    "tensor {name} takes vectors of {cols} values, they have {width}"
                )));
            }
            width = matrix.rows();
            matrices.push(matrix);
        }
        Ok((!matrices.is_empty()).then_some(Self(matrices)))
    }

    /// The vector that they make of a pooled one, `[n_embd]`.
    pub fn apply(&self, pooled: &[f32]) -> Vec<f32> {
        let wide = pooled.iter().map(|v| f64::from(*v)).collect();
        let made = self.0.iter().fold(wide, |vector: Vec<f64>, matrix| matrix.apply(&vector));
        made.into_iter().map(|v| v as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_goes_through_both() {
        let first = Matrix::of(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], &[0.0, 0.0, 0.5], 2);
        let second = Matrix::of(&[1.0, 2.0, 4.0], &[], 3);
        let both = Projections(vec![first.clone(), second]);
        // 3, -1 and 2.5 of them; weighed 1, 2 and 4.
        assert_eq!(both.apply(&[3.0, -1.0]), [11.0]);
        assert_eq!(Projections(vec![first]).apply(&[3.0, -1.0]), [3.0, -1.0, 2.5]);
    }
}

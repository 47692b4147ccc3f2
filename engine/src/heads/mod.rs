//! Heads that make something else of a text's rows than the next token: a verdict, or a vector in another space.
//!
//! A stage does not run them. The rows that the last norm makes, and the model's file, are enough to run them.

mod classifier;
mod matrix;
mod projections;

pub use classifier::Classifier;
pub use projections::Projections;

use crate::gguf::{Gguf, TensorFiles};
use crate::spec::ModelError;

/// Heads of a model that does more than continue texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heads {
    /// Judges texts, in a reranker.
    pub classifier: Option<Classifier>,
    /// Projections of pooled vectors.
    pub projections: Option<Projections>,
}

impl Heads {
    /// Reads the heads of a model whose rows have `n_embd` values, an encoder or not, from its open files.
    ///
    /// # Errors
    /// Tensors do not fit each other, or cannot be read.
    pub fn read(
        model: &Gguf,
        n_embd: usize,
        is_encoder: bool,
        files: &TensorFiles,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            classifier: Classifier::read(model, is_encoder, files)?,
            projections: Projections::read(model, n_embd, files)?,
        })
    }

    /// The vector of a text whose rows were pooled, `[n_embd]`.
    pub fn vector(&self, pooled: Vec<f32>) -> Vec<f32> {
        match &self.projections {
            Some(projections) => projections.apply(&pooled),
            None => pooled,
        }
    }
}

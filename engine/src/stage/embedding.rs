//! Token ids to hidden rows: a gather from the embedding matrix as the file holds it.

use std::sync::Arc;

use rayon::prelude::*;

use crate::batch::UBatch;
use crate::error::ModelError;
use crate::gguf::TensorInfo;
use crate::quant::{self, Format};
use crate::weights::TensorSource;

/// Rows per task when a large ubatch is embedded.
const ROWS_PER_TASK: usize = 64;

/// The embedding matrix `[n_vocab, n_embd]`, left where it is.
pub(super) struct Embedding {
    source: Arc<dyn TensorSource>,
    tensor: TensorInfo,
    n_embd: usize,
    format: &'static Format,
}

impl Embedding {
    /// `tensor` has dimensions `{n_embd, n_vocab}`.
    pub(super) fn new(
        source: Arc<dyn TensorSource>,
        tensor: TensorInfo,
        n_embd: usize,
        n_vocab: usize,
    ) -> Result<Self, ModelError> {
        let format = quant::require_format(tensor.ty, &tensor.name)?;
        let embedding = Self { source, tensor, n_embd, format };
        // One row now, so that data that cannot be had is an error of loading.
        embedding.row(n_vocab - 1, &mut vec![0.0; n_embd])?;
        Ok(embedding)
    }

    /// The rows of a ubatch, `[n_rows, n_embd]`; its tokens are known to be in the vocabulary.
    pub(super) fn rows(&self, ub: &UBatch, scale: f32) -> Vec<f32> {
        let tokens: Vec<u32> = ub.parts.iter().flat_map(|p| &p.tokens).copied().collect();
        let mut hidden = vec![0.0; tokens.len() * self.n_embd];
        let embed = |(tokens, rows): (&[u32], &mut [f32])| {
            for (&token, row) in tokens.iter().zip(rows.chunks_exact_mut(self.n_embd)) {
                self.row(token as usize, row).expect("a row was read when loading");
                if scale != 1.0 {
                    row.iter_mut().for_each(|x| *x *= scale);
                }
            }
        };
        if tokens.len() <= ROWS_PER_TASK {
            embed((&tokens, &mut hidden));
        } else {
            let rows = hidden.par_chunks_mut(ROWS_PER_TASK * self.n_embd);
            tokens.par_chunks(ROWS_PER_TASK).zip(rows).for_each(embed);
        }
        hidden
    }

    fn row(&self, token: usize, out: &mut [f32]) -> Result<(), ModelError> {
        let bytes = self.source.tensor(&self.tensor)?;
        let n = self.tensor.row_bytes();
        Ok(self.format.dequantize_row(&bytes[token * n..][..n], out)?)
    }
}

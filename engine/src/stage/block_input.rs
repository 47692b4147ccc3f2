//! What a block or the head reads of a token's rows. Where the model attends over depth, that is a mixture of
//! rows. Where there is a norm, it is normed.

use super::boundary_rows::BoundaryRows;
use super::norm::Norm;
use crate::error::ModelError;
use crate::kernels::Compute;
use crate::weights::WeightLoader;

/// A norm, where there is one, and what comes before it.
pub(super) struct BlockInput {
    /// `None` where the stream is read as it is.
    norm: Option<Norm>,
    /// Of residual attention over depth.
    mix: Option<Mix>,
}

/// The weights of one mixture over depth.
pub(super) struct Mix {
    /// `[n_embd]`.
    score: Vec<f32>,
    /// Epsilon of the norm under the scores.
    eps: f32,
}

impl Mix {
    /// Loads the score vector.
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        score: &str,
        n_embd: usize,
        eps: f32,
    ) -> Result<Self, ModelError> {
        Ok(Self { score: loader.vector(score, n_embd)?, eps })
    }
}

impl BlockInput {
    pub(super) fn new(norm: Option<Norm>, mix: Option<Mix>) -> Self {
        Self { norm, mix }
    }

    /// `out = norm(stream)`, or the norm of a mixture of what was kept, oldest first, and the stream.
    pub(super) fn apply(&self, compute: &Compute, rows: &BoundaryRows, out: &mut [f32]) {
        let Some(mix) = self.mix.as_ref().filter(|_| !rows.beside.is_empty()) else {
            return match &self.norm {
                Some(norm) => norm.apply(compute, &rows.hidden, out),
                None => out.copy_from_slice(&rows.hidden),
            };
        };
        let sources: Vec<&[f32]> =
            rows.beside.iter().chain([&rows.hidden]).map(Vec::as_slice).collect();
        compute.attend_depth(&sources, &mix.score, mix.eps, out);
        if let Some(norm) = &self.norm {
            norm.apply_inplace(compute, out);
        }
    }
}

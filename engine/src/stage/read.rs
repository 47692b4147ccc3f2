//! What a block or the head reads of a token's rows: normed, and where the model attends over depth, mixed.

use super::carried::Carried;
use super::norm::Norm;
use crate::error::ModelError;
use crate::kernels::Compute;
use crate::weights::WeightLoader;

/// A norm, and what comes before it.
pub(super) struct Read {
    norm: Norm,
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

impl Read {
    pub(super) fn new(norm: Norm, mix: Option<Mix>) -> Self {
        Self { norm, mix }
    }

    /// Width of a row.
    pub(super) fn width(&self) -> usize {
        self.norm.width()
    }

    /// `out = norm(stream)`, or the norm of a mixture of what was kept, oldest first, and the stream.
    pub(super) fn apply(&self, compute: &Compute, rows: &Carried, out: &mut [f32]) {
        let Some(mix) = self.mix.as_ref().filter(|_| !rows.beside.is_empty()) else {
            return self.norm.apply(compute, &rows.hidden, out);
        };
        let sources: Vec<&[f32]> =
            rows.beside.iter().chain([&rows.hidden]).map(Vec::as_slice).collect();
        compute.attend_depth(&sources, &mix.score, mix.eps, out);
        self.norm.apply_inplace(compute, out);
    }
}

//! Residual attention over depth: blocks and head read a mixture of the stream and of what it was at earlier layers.

use super::norm::{self, Norm};
use super::{BoundaryRows, Inputs, Merge, Met, On, Residual};
use crate::device::Rows;
use crate::kernels::Vector;
use crate::spec::{DepthSpec, ModelError};
use crate::weights::WeightLoader;

/// The weights of one mixture over depth.
pub(super) struct DepthMixture {
    /// `[n_embd]`.
    score: Vector,
    /// Epsilon of the norm under the scores.
    eps: f32,
}

impl DepthMixture {
    /// Loads the score vector, whose name follows `stem`.
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        spec: &DepthSpec,
        stem: &str,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        let score = loader.vector(&format!("{stem}{}", spec.score), n_embd)?;
        Ok(Self { score, eps: spec.eps })
    }
}

impl Merge for DepthMixture {
    fn merge(&self, on: On<'_>, rows: &BoundaryRows, out: &mut Rows) {
        let sources: Vec<&Rows> = rows.beside.iter().chain([&rows.hidden]).collect();
        on.device.attend_depth(&sources, &self.score, self.eps, out);
    }
}

/// A block that reads such a mixture.
pub(super) struct OverDepth {
    pub(super) mixture: DepthMixture,
    /// Whether the stream is kept as it is, and goes on as the block's output.
    pub(super) keeps: bool,
}

impl Residual for OverDepth {
    fn enter(
        &self,
        on: On<'_>,
        norm: Option<&Norm>,
        rows: &mut BoundaryRows,
        inputs: &mut Inputs,
    ) -> Option<Rows> {
        // Nothing is kept before the first block.
        if rows.beside.is_empty() {
            norm::read(on.device, norm, &rows.hidden, &mut inputs.rows);
        } else {
            self.mixture.merge(on, rows, &mut inputs.rows);
            norm::apply(on.device, norm, &mut inputs.rows);
        }
        None
    }

    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        if self.keeps {
            rows.restart(met.output);
        } else {
            on.device.add_scaled(&mut rows.hidden, &met.output, 1.0);
        }
    }
}

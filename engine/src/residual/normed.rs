//! Norms behind the sum, as BERT has them (arXiv 1810.04805), and a second norm of what they give and the stream as it came.

use super::norm::{self, Norm};
use super::{BoundaryRows, Inputs, Met, On, Residual};
use crate::device::Rows;
use crate::spec::{ModelError, ModelSpec, NormedSpec};
use crate::weights::WeightLoader;

/// `u = norm(x + y)`, and where there is another norm `again(u + x)`.
pub(super) struct Normed {
    norm: Norm,
    again: Option<Norm>,
}

impl Normed {
    /// Loads the norms; their names follow `stem`.
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        model: &ModelSpec,
        spec: &NormedSpec,
        stem: &str,
    ) -> Result<Self, ModelError> {
        let kind = model.skeleton.norm;
        let mut load = |weight: &str| {
            let weight = format!("{stem}{weight}");
            Norm::load(loader, kind, &weight, model.n_embd, spec.eps)
        };
        Ok(Self { norm: load(spec.norm)?, again: spec.again.map(load).transpose()? })
    }
}

impl Residual for Normed {
    /// Keeps the stream as it comes, where it is read again.
    fn enter(
        &self,
        on: On<'_>,
        norm: Option<&Norm>,
        rows: &mut BoundaryRows,
        inputs: &mut Inputs,
    ) -> Option<Rows> {
        norm::read(on.device, norm, &rows.hidden, &mut inputs.rows);
        self.again.as_ref().map(|_| on.scratch.copy_of(&rows.hidden))
    }

    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        on.device.add_scaled(&mut rows.hidden, &met.output, 1.0);
        self.norm.apply_inplace(on.device, &mut rows.hidden);
        if let (Some(norm), Some(came)) = (&self.again, &met.kept) {
            on.device.add(&mut rows.hidden, came);
            norm.apply_inplace(on.device, &mut rows.hidden);
        }
    }
}

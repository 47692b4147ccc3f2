//! Several passes through a model's layers: the start of the stream where two stacks take turns, and the change of the
//! stream between two passes.

use std::ops::Range;
use std::sync::Arc;

use super::{Begin, Behind, BoundaryRows, Norm, On};
use crate::batch::UBatch;
use crate::device::Device;
use crate::kernels::Vector;
use crate::spec::{LOW_START, ModelError, ModelSpec, NormKind, PassEnd};
use crate::weights::WeightLoader;

/// The row beside the stream is the token's. The stream begins as the sum of that and of a row for all tokens.
pub(super) struct LowStart {
    /// `[n_embd]`.
    row: Vector,
}

impl LowStart {
    /// Loads the row for all tokens.
    pub(super) fn load(loader: &mut WeightLoader<'_>, n_embd: usize) -> Result<Self, ModelError> {
        Ok(Self { row: loader.vector(LOW_START, n_embd)? })
    }
}

impl Begin for LowStart {
    fn begin(&self, on: On<'_>, _: &UBatch, rows: &mut BoundaryRows) {
        let embedded = on.scratch.copy_of(&rows.hidden);
        rows.beside.push(embedded);
        on.device.add_bias(&mut rows.hidden, &self.row);
    }
}

/// The end of a pass.
pub(crate) struct PassBoundary {
    /// Treatment of the stream; the row beside it is the first one.
    pub end: PassEnd,
    /// Norm of the stream.
    pub norm: Arc<Norm>,
}

impl Behind for PassBoundary {
    fn apply(&self, device: &Device, rows: &mut BoundaryRows) {
        self.norm.apply_inplace(device, &mut rows.hidden);
        match self.end {
            PassEnd::Normed => {}
            PassEnd::AddsBeside => device.add(&mut rows.hidden, &rows.beside[0]),
            PassEnd::TakesTurns => {
                device.add(&mut rows.beside[0], &rows.hidden);
                std::mem::swap(&mut rows.hidden, &mut rows.beside[0]);
            }
        }
    }
}

/// The norm of the stream behind the last layer of a pass, where one ends so in `layers`.
///
/// # Errors
/// As of every tensor that is missing, misshapen or of an unknown type.
pub(crate) fn load_pass_norm(
    model: &ModelSpec,
    layers: &Range<usize>,
    loader: &mut WeightLoader<'_>,
) -> Result<Option<Norm>, ModelError> {
    let passes = &model.skeleton.passes;
    if !layers.clone().any(|layer| passes.end(layer, model.n_layer()).is_some()) {
        return Ok(None);
    }
    let (kind, weight) = match model.pass_norm(layers) {
        Some(weight) => (model.skeleton.norm, weight),
        None => (NormKind::RmsUnweighted, ""),
    };
    Ok(Some(Norm::load(loader, kind, weight, model.n_embd, model.head.eps)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Rows;
    use crate::kernels::select;

    #[test]
    fn a_pass_ends_with_a_norm_and_a_sum() {
        let device = Device::cpu(select(None).unwrap(), 1, None).unwrap();
        let norm = Arc::new(Norm::plain(2, 0.0));
        let ended = |end| {
            let mut rows = BoundaryRows::stream(Rows::new(vec![3.0, 3.0, -2.0, 2.0], 2));
            rows.beside = vec![Rows::new(vec![10.0, 20.0, 30.0, 40.0], 2)];
            PassBoundary { end, norm: norm.clone() }.apply(&device, &mut rows);
            (rows.hidden.into_vec(), rows.beside.remove(0).into_vec())
        };
        let (normed, came) = (vec![1.0, 1.0, -1.0, 1.0], vec![10.0, 20.0, 30.0, 40.0]);
        let sum = vec![11.0, 21.0, 29.0, 41.0];
        assert_eq!(ended(PassEnd::Normed), (normed.clone(), came.clone()));
        assert_eq!(ended(PassEnd::AddsBeside), (sum.clone(), came));
        assert_eq!(ended(PassEnd::TakesTurns), (sum, normed));
    }
}

//! The rows that came into the first layer are added again behind blocks.

use super::{Begin, BoundaryRows, Met, On, Residual};
use crate::batch::UBatch;
use crate::spec::{Beside, ModelError};
use crate::weights::WeightLoader;

/// `x + y + factor * e`, where `e` are those rows.
pub(super) struct WithEmbedding {
    factor: f32,
}

impl WithEmbedding {
    /// The factor is the one value of a tensor.
    pub(super) fn load(loader: &mut WeightLoader<'_>, name: &str) -> Result<Self, ModelError> {
        Ok(Self { factor: loader.vector(name, 1)?[0] })
    }
}

impl Residual for WithEmbedding {
    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        on.device.add_scaled(&mut rows.hidden, &met.output, 1.0);
        on.device.add_scaled(&mut rows.hidden, &rows.beside[Beside::EMBEDDING], self.factor);
    }
}

/// Keeps them beside the stream.
pub(super) struct Embedded;

impl Begin for Embedded {
    fn begin(&self, on: On<'_>, _: &UBatch, rows: &mut BoundaryRows) {
        let embedded = on.scratch.copy_of(&rows.hidden);
        rows.beside.push(embedded);
    }
}

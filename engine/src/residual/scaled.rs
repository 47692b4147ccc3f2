//! Sums with factors, on a block's output and on the stream behind it.

use super::{BoundaryRows, Met, On, Residual};
use crate::spec::ModelError;
use crate::weights::WeightLoader;

/// `stream * (x + output * y)`.
pub(super) struct Scaled {
    pub(super) output: f32,
    pub(super) stream: f32,
}

impl Scaled {
    /// The factor on the stream is the one value of a tensor.
    pub(super) fn by_tensor(loader: &mut WeightLoader<'_>, name: &str) -> Result<Self, ModelError> {
        Ok(Self { output: 1.0, stream: loader.vector(name, 1)?[0] })
    }
}

impl Residual for Scaled {
    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        on.device.add_scaled(&mut rows.hidden, &met.output, self.output);
        if self.stream != 1.0 {
            on.device.scale(&mut rows.hidden, self.stream);
        }
    }
}

//! The sum: a block's output is added to the stream.

use super::{BoundaryRows, Met, On, Residual};

/// The stream becomes `x + y`.
pub(super) struct Plain;

impl Residual for Plain {
    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        on.device.add_scaled(&mut rows.hidden, &met.output, 1.0);
    }
}

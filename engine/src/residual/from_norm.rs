//! The stream goes on from what a block read of it: the normed rows, scaled (MiniMax-Text-01, arXiv 2501.08313).

use super::{BoundaryRows, Met, On, Residual};

/// `scale * norm(x) + y`.
pub(super) struct FromNorm {
    pub(super) scale: f32,
}

impl Residual for FromNorm {
    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        rows.hidden.set(met.input);
        on.device.scale(&mut rows.hidden, self.scale);
        on.device.add_scaled(&mut rows.hidden, &met.output, 1.0);
    }
}

//! Control vectors: what is added to the streams behind a layer.

use super::{Behind, BoundaryRows};
use crate::device::Device;
use crate::kernels::Vector;

/// A row that is added to so many streams.
pub(crate) struct ControlVector {
    /// `[n_embd]`: added to the stream of every row.
    pub vector: Vector,
    pub n_streams: usize,
}

impl Behind for ControlVector {
    fn apply(&self, device: &Device, rows: &mut BoundaryRows) {
        let streams = rows.streams_mut(self.n_streams);
        streams.for_each(|stream| device.add_bias(stream, &self.vector));
    }
}

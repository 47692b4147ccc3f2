//! Values for the host: brought to its memory where they lie with a GPU. It reads that at the speed of memory, and a GPU's own
//! only word by word.

use std::ops::Deref;

use brigade_gpu::{GpuBuffer, Purpose};

use super::Rows;

/// Values that the host reads.
pub struct Fetched<'a>(Place<'a>);

enum Place<'a> {
    Here(&'a Rows),
    Brought(GpuBuffer),
}

impl Rows {
    /// The values, for the host. They are on their way at once; whoever reads them waits, which is once for all that were fetched
    /// before.
    pub fn fetched(&self) -> Fetched<'_> {
        let brought = self.gpu().zip(self.span()).and_then(|(gpu, span)| {
            let mut buffer = gpu.buffer(span.len(), Purpose::Results).ok()?;
            gpu.copy(span, buffer.span_mut());
            Some(buffer)
        });
        Fetched(brought.map_or(Place::Here(self), Place::Brought))
    }
}

impl Deref for Fetched<'_> {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Place::Here(rows) => rows,
            Place::Brought(buffer) => bytemuck::cast_slice(buffer.bytes()),
        }
    }
}

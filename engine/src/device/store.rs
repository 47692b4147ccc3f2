//! Where the values of rows lie: with the host, or with a GPU.

use brigade_gpu::{Gpu, GpuBuffer, Purpose, Span, SpanMut};

use super::give_up;

/// Values in f32, stale at first.
pub(super) enum Store {
    /// In the host's memory.
    Host(Vec<f32>),
    /// In a GPU's. The host may look at it too, once the GPU is done with what it was told to do.
    Gpu(GpuBuffer),
}

impl Default for Store {
    fn default() -> Self {
        Self::Host(Vec::new())
    }
}

impl Store {
    /// Room for `len` values.
    ///
    /// # Panics
    /// If the GPU has not that much memory. The stage ends with this as its reason.
    pub(super) fn new(gpu: Option<&Gpu>, len: usize) -> Self {
        match gpu {
            None => Self::Host(vec![0.0; len]),
            Some(gpu) => match gpu.buffer(len * size_of::<f32>(), Purpose::Activations) {
                Ok(buffer) => Self::Gpu(buffer),
                Err(error) => give_up("the rows of a ubatch", &error),
            },
        }
    }

    /// How many values there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Gpu(buffer) => buffer.len() / size_of::<f32>(),
        }
    }

    /// Where they lie with a GPU, whose commands name the place; all places of the host are one.
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Host(_) => 0,
            Self::Gpu(buffer) => buffer.address(),
        }
    }

    /// The values, for the host.
    pub(super) fn on_host(&self) -> &[f32] {
        match self {
            Self::Host(values) => values,
            Self::Gpu(buffer) => bytemuck::cast_slice(buffer.bytes()),
        }
    }

    /// The values, for the host to write.
    pub(super) fn on_host_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Host(values) => values,
            Self::Gpu(buffer) => bytemuck::cast_slice_mut(buffer.bytes_mut()),
        }
    }

    /// The GPU that they lie with.
    pub(super) fn gpu(&self) -> Option<&Gpu> {
        match self {
            Self::Host(_) => None,
            Self::Gpu(buffer) => Some(buffer.gpu()),
        }
    }

    /// All values, if they lie with a GPU.
    pub(super) fn span(&self) -> Option<Span<'_>> {
        match self {
            Self::Host(_) => None,
            Self::Gpu(buffer) => Some(buffer.span()),
        }
    }

    /// All values to be written, if they lie with a GPU.
    pub(super) fn span_mut(&mut self) -> Option<SpanMut<'_>> {
        match self {
            Self::Host(_) => None,
            Self::Gpu(buffer) => Some(buffer.span_mut()),
        }
    }
}

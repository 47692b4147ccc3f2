//! What an index chose, where attention reads it.

use brigade_gpu::{Gpu, GpuBuffer, Purpose, Span};

use super::pages::with_room;

/// Lists of whole numbers, one after the other, all as long: those of blocks or of entries.
pub struct Lists(Place);

enum Place {
    Host(Vec<u32>),
    Gpu(GpuBuffer),
}

impl Lists {
    /// Lists with the host.
    pub(super) fn on(numbers: Vec<u32>) -> Self {
        Self(Place::Host(numbers))
    }

    /// `len` numbers that `fill` writes with a GPU; `None` where it writes none.
    ///
    /// # Panics
    /// If the GPU has no memory for them.
    pub(super) fn filled(
        gpu: &Gpu,
        len: usize,
        fill: impl FnOnce(&mut GpuBuffer) -> bool,
    ) -> Option<Self> {
        let buffer = gpu.buffer(len * size_of::<u32>(), Purpose::Activations);
        let mut buffer = with_room("what an index chooses", buffer);
        fill(&mut buffer).then(|| Self(Place::Gpu(buffer)))
    }

    /// The numbers, for the host.
    pub fn on_host(&self) -> &[u32] {
        match &self.0 {
            Place::Host(numbers) => numbers,
            Place::Gpu(buffer) => bytemuck::cast_slice(buffer.bytes()),
        }
    }

    /// The numbers with the GPU, where they are put if they do not lie there.
    pub(super) fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> Span<'a> {
        match &self.0 {
            Place::Host(numbers) => gpu.upload(bytemuck::cast_slice(numbers)),
            Place::Gpu(buffer) => buffer.span(),
        }
    }
}

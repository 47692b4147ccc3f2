//! What an index chose, where attention reads it.

use brigade_gpu::{Gpu, GpuBuffer, Purpose};

use super::{Device, with_room};
use crate::ops::{Part, PartMut, View, ViewMut};

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

    /// The numbers, as ops write them.
    pub(super) fn view_mut(&mut self) -> ViewMut<'_, u32> {
        match &mut self.0 {
            Place::Host(numbers) => ViewMut::Host(numbers),
            Place::Gpu(buffer) => {
                let bytes = 0..buffer.len();
                ViewMut::Device(PartMut::of(buffer, bytes))
            }
        }
    }

    /// The numbers, as ops read them.
    pub fn view(&self) -> View<'_, u32> {
        match &self.0 {
            Place::Host(numbers) => View::Host(numbers),
            Place::Gpu(buffer) => View::Device(Part::of(buffer, 0..buffer.len())),
        }
    }
}

impl Device {
    /// Room for `len` numbers.
    ///
    /// # Panics
    /// If a GPU has no memory for them.
    pub(super) fn lists(&self, len: usize) -> Lists {
        match &self.gpu {
            None => Lists(Place::Host(vec![0; len])),
            Some(gpu) => {
                let buffer = gpu.buffer(len * size_of::<u32>(), Purpose::Activations);
                Lists(Place::Gpu(with_room("what an index chooses", buffer)))
            }
        }
    }
}

//! Memory for packed weights: zeroed, aligned to cache lines, and in huge pages where the system has them.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use brigade_gpu::{GpuBuffer, Span};
use memmap2::MmapMut;

use super::error::KernelError;

/// Smallest allocation that gets pages of its own, and huge ones if the system has them. Smaller ones
/// (there may be tens of thousands, one for each expert of each layer) come from the heap, because a
/// process has only so many mappings.
const MAP_FROM: usize = 4 << 20;

/// A cache line.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A fixed number of bytes, zero at first, from a cache line's start.
pub(crate) struct AlignedBytes {
    len: usize,
    memory: Memory,
}

enum Memory {
    Heap(Box<[Line]>),
    Map(MmapMut),
    /// With a GPU. What is shared stays as it is.
    Gpu(Arc<GpuBuffer>),
}

impl AlignedBytes {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// [`KernelError::Memory`] when the system has none.
    pub(crate) fn zeroed(len: usize) -> Result<Self, KernelError> {
        let memory = if len < MAP_FROM {
            let lines = len.div_ceil(size_of::<Line>());
            let lines = bytemuck::allocation::try_zeroed_slice_box(lines);
            Memory::Heap(lines.map_err(|()| KernelError::Memory {
                bytes: len,
                source: std::io::ErrorKind::OutOfMemory.into(),
            })?)
        } else {
            Memory::Map(map(len)?)
        };
        Ok(Self { len, memory })
    }

    /// The bytes of a GPU's buffer.
    pub(crate) fn with_gpu(buffer: GpuBuffer) -> Self {
        Self { len: buffer.len(), memory: Memory::Gpu(Arc::new(buffer)) }
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bytes, if they lie with a GPU.
    pub(crate) fn span(&self) -> Option<Span<'_>> {
        match &self.memory {
            Memory::Heap(_) | Memory::Map(_) => None,
            Memory::Gpu(buffer) => Some(buffer.span()),
        }
    }

    /// The GPU's buffer, if they lie with one.
    pub(crate) fn buffer(&self) -> Option<&Arc<GpuBuffer>> {
        match &self.memory {
            Memory::Heap(_) | Memory::Map(_) => None,
            Memory::Gpu(buffer) => Some(buffer),
        }
    }
}

/// `len` zero bytes on pages of their own.
fn map(len: usize) -> Result<MmapMut, KernelError> {
    let map =
        MmapMut::map_anon(len).map_err(|source| KernelError::Memory { bytes: len, source })?;
    #[cfg(target_os = "linux")]
    // Advice only: without huge pages the weights read a little slower.
    if let Err(reason) = map.advise(memmap2::Advice::HugePage) {
        tracing::debug!(%reason, "no huge pages for packed weights");
    }
    Ok(map)
}

/// For what runs on the host. Of a card with a memory of its own it sees nothing: weights there are read by its ops.
impl Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Memory::Map(map) => map,
            Memory::Gpu(buffer) => buffer.bytes(),
        }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Map(map) => map,
            Memory::Gpu(buffer) => {
                Arc::get_mut(buffer).expect("nobody writes what is shared").bytes_mut()
            }
        }
    }
}

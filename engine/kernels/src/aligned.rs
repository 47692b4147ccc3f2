//! Memory for packed weights: zeroed, aligned to cache lines, and in huge pages where the system has them.

use std::any::Any;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use memmap2::MmapMut;

use brigade_quant::KernelError;

/// Smallest allocation that gets pages of its own, and huge ones if the system has them. Smaller ones
/// (there may be tens of thousands, one for each expert of each layer) come from the heap, because a
/// process has only so many mappings.
const MAP_FROM: usize = 4 << 20;

/// A cache line.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory of a device that keeps packed weights. Who made it knows what it is.
pub trait DeviceMemory: Any + Send + Sync {
    /// The bytes as the host sees them; none where it does not.
    fn bytes(&self) -> &[u8];
    /// The same, to be written.
    fn bytes_mut(&mut self) -> &mut [u8];
}

/// A fixed number of bytes, zero at first, from a cache line's start.
pub(crate) struct AlignedBytes {
    len: usize,
    memory: Memory,
}

enum Memory {
    Heap(Box<[Line]>),
    Map(MmapMut),
    /// A device's. What is shared stays as it is.
    Device(Arc<dyn DeviceMemory>),
}

impl AlignedBytes {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// [`KernelError::Memory`] when the system has none.
    #[inline]
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

    /// `len` bytes that lie with a device.
    pub(crate) fn with_device(len: usize, memory: Arc<dyn DeviceMemory>) -> Self {
        Self { len, memory: Memory::Device(memory) }
    }

    /// How many bytes there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The device's memory, if they lie with one.
    pub(crate) fn with(&self) -> Option<&Arc<dyn DeviceMemory>> {
        match &self.memory {
            Memory::Heap(_) | Memory::Map(_) => None,
            Memory::Device(memory) => Some(memory),
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
            Memory::Device(memory) => memory.bytes(),
        }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Map(map) => map,
            Memory::Device(memory) => {
                Arc::get_mut(memory).expect("nobody writes what is shared").bytes_mut()
            }
        }
    }
}

//! Memory for packed weights: zeroed, aligned to cache lines, and in huge pages where the system has them.
//!
//! Weights are read from end to end for each token, and with small pages a core spends up to half of that time on finding
//! where pages are. The system makes a huge page where a whole one of its places is in one mapping. So weights lie side by side
//! in large mappings that begin at such a place ([`crate::slab`]).

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use brigade_ops::Buffer;
use brigade_quant::KernelError;

use crate::slab::Piece;

/// Smallest allocation that lies in a slab. Smaller ones come from the heap.
const SLAB_FROM: usize = 64 << 10;

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
    Slab(Piece),
    /// Memory of a device. Shared memory is never changed. What is shared stays as it is.
    Device(Arc<dyn Buffer>),
}

impl AlignedBytes {
    /// `len` zero bytes.
    ///
    /// # Errors
    /// [`KernelError::Memory`] when the system has none.
    #[inline]
    pub(crate) fn zeroed(len: usize) -> Result<Self, KernelError> {
        let memory = if len < SLAB_FROM {
            let lines = len.div_ceil(size_of::<Line>());
            let lines = bytemuck::allocation::try_zeroed_slice_box(lines);
            Memory::Heap(lines.map_err(|()| KernelError::Memory {
                bytes: len,
                source: std::io::ErrorKind::OutOfMemory.into(),
            })?)
        } else {
            Memory::Slab(Piece::zeroed(len)?)
        };
        Ok(Self { len, memory })
    }

    /// `len` bytes that lie with a device.
    pub(crate) fn with_device(len: usize, memory: Arc<dyn Buffer>) -> Self {
        Self { len, memory: Memory::Device(memory) }
    }

    /// Length in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The device's memory, if they lie with one.
    pub(crate) fn with(&self) -> Option<&Arc<dyn Buffer>> {
        match &self.memory {
            Memory::Heap(_) | Memory::Slab(_) => None,
            Memory::Device(memory) => Some(memory),
        }
    }
}

/// For what runs on the host. It sees no memory of a device: weights there are read by its ops.
impl Deref for AlignedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(lines) => &bytemuck::cast_slice(lines)[..self.len],
            Memory::Slab(piece) => piece.bytes(),
            Memory::Device(_) => panic!("weights with a device are read by its ops"),
        }
    }
}

impl DerefMut for AlignedBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Heap(lines) => &mut bytemuck::cast_slice_mut(lines)[..self.len],
            Memory::Slab(piece) => piece.bytes_mut(),
            Memory::Device(_) => panic!("a device writes its memory itself"),
        }
    }
}

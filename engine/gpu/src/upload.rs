//! Small tables for the device, which live until the next `finish`.

use crate::error::GpuError;
use crate::logical::Device;
use crate::slab::{Place, Slab};

/// Bytes of a chunk that tables share.
const CHUNK: u64 = 1 << 20;

/// Chunks that are filled one after the other.
#[derive(Default)]
pub(crate) struct Uploads {
    chunks: Vec<Slab>,
    /// The chunk that is being filled.
    at: usize,
    used: u64,
}

impl Uploads {
    /// Copies bytes to where the device reads them, and says where.
    pub(crate) fn put(&mut self, device: &Device, bytes: &[u8]) -> Result<u64, GpuError> {
        let len = (bytes.len() as u64).max(1).next_multiple_of(crate::memory::ALIGNMENT);
        while self.chunks.get(self.at).is_some_and(|chunk| self.used + len > chunk.len) {
            self.at += 1;
            self.used = 0;
        }
        if self.at == self.chunks.len() {
            self.chunks.push(Slab::new(device, len.max(CHUNK), Place::Device)?);
        }
        let (chunk, offset) = (&self.chunks[self.at], self.used);
        self.used += len;
        // SAFETY: the chunk has room for them (above), and nobody has been told of this part since the device
        // was waited for.
        unsafe {
            let to = chunk.host.add(offset as usize).as_ptr();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(chunk.address + offset)
    }

    /// Starts again at the first chunk. The device has done all its work.
    pub(crate) fn restart(&mut self) {
        (self.at, self.used) = (0, 0);
    }

    /// Takes out every chunk.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Slab> {
        std::mem::take(&mut self.chunks).into_iter()
    }
}

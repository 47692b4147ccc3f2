//! Small tables for the device. A thread's tables live until its next `finish`, whatever other threads do meanwhile: each may compute a
//! stage of its own on the device.

use std::collections::HashMap;
use std::thread::{self, ThreadId};

use crate::error::GpuError;
use crate::logical::Device;
use crate::slab::{Place, Slab};

/// Bytes of a chunk that tables share.
const CHUNK: u64 = 1 << 20;

/// Chunks that are filled one after the other, of each thread its own.
#[derive(Default)]
pub(crate) struct Uploads {
    of_threads: HashMap<ThreadId, Tables>,
    free: Vec<Slab>,
}

/// Tables of one thread; the last chunk is being filled.
#[derive(Default)]
struct Tables {
    chunks: Vec<Slab>,
    used: u64,
}

impl Uploads {
    /// Copies bytes to where the device reads them, and says where.
    pub(crate) fn put(&mut self, device: &Device, bytes: &[u8]) -> Result<u64, GpuError> {
        let len = (bytes.len() as u64).max(1).next_multiple_of(crate::memory::ALIGNMENT);
        let tables = self.of_threads.entry(thread::current().id()).or_default();
        if tables.chunks.last().is_none_or(|chunk| tables.used + len > chunk.len) {
            let chunk = match self.free.iter().position(|chunk| len <= chunk.len) {
                Some(fits) => self.free.swap_remove(fits),
                None => Slab::new(device, len.max(CHUNK), Place::Device)?,
            };
            tables.chunks.push(chunk);
            tables.used = 0;
        }
        let (chunk, offset) = (tables.chunks.last().expect("one was just pushed"), tables.used);
        let host = chunk.host.expect("the host sees what is near the device (`Place::Device`)");
        tables.used += len;
        // SAFETY: the chunk has room for them (above), and nobody has been told of this part since the device
        // was waited for.
        unsafe {
            let to = host.add(offset as usize).as_ptr();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok(chunk.address + offset)
    }

    /// The chunks of this thread are free again. The device has done all its work.
    pub(crate) fn end(&mut self) {
        let tables = self.of_threads.remove(&thread::current().id());
        self.free.extend(tables.into_iter().flat_map(|tables| tables.chunks));
    }

    /// Takes out every chunk.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Slab> {
        let of_threads = std::mem::take(&mut self.of_threads).into_values();
        of_threads.flat_map(|tables| tables.chunks).chain(std::mem::take(&mut self.free))
    }
}

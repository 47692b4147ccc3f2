//! Small tables for the device. The tables of a thread belong to its next milestone, and live until that was waited
//! for. Other tables may be brought meanwhile: by other threads, which may compute stages of their own on the device,
//! or for later work of this one.

use std::collections::HashMap;
use std::thread::{self, ThreadId};

use super::slab::{Place, Slab};
use crate::error::GpuError;
use crate::vulkan::logical::Device;

/// Bytes of a chunk that tables share.
const CHUNK: u64 = 1 << 20;

/// Chunks that are filled one after the other, of each thread its own.
#[derive(Default)]
pub(crate) struct Uploads {
    of_threads: HashMap<ThreadId, Tables>,
    /// Chunks that handed-over work reads, with the number of the last batch of that work.
    handed: Vec<(u64, Vec<Slab>)>,
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
            // The one that lies first, so that tables of a pass lie where they lay in the pass before.
            let fits = (0..self.free.len()).filter(|at| len <= self.free[*at].len);
            let chunk = match fits.min_by_key(|at| self.free[*at].address) {
                Some(first) => self.free.swap_remove(first),
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

    /// The tables of this thread are complete: they are free when this batch is done.
    pub(crate) fn hand_over(&mut self, batch: u64) {
        if let Some(tables) = self.of_threads.remove(&thread::current().id()) {
            self.handed.push((batch, tables.chunks));
        }
    }

    /// Frees the tables of what is done: batches up to this one.
    pub(crate) fn free(&mut self, done: u64) {
        let Self { handed, free, .. } = self;
        let of_done = handed.extract_if(.., |(batch, _)| *batch <= done);
        free.extend(of_done.flat_map(|(_, chunks)| chunks));
    }

    /// Takes out every chunk.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Slab> {
        let of_threads = std::mem::take(&mut self.of_threads).into_values();
        let handed = std::mem::take(&mut self.handed).into_iter();
        let in_use = of_threads.map(|tables| tables.chunks).chain(handed.map(|(_, chunks)| chunks));
        in_use.flatten().chain(std::mem::take(&mut self.free))
    }
}

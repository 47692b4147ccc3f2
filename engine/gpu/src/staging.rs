//! Bytes of the host on their way to memory that it does not see, through a ring of chunks that both see: the host fills one while the
//! device copies another.

use ash::vk;

use crate::error::GpuError;
use crate::logical::Device;
use crate::slab::{Place, Slab};

/// Bytes of a chunk.
const CHUNK: u64 = 16 << 20;
/// Chunks of the ring.
const CHUNKS: usize = 3;

/// The ring; its chunks are made when they are first filled.
#[derive(Default)]
pub(crate) struct Staging {
    chunks: Vec<Chunk>,
    /// The chunk that is being filled, and how far.
    at: usize,
    used: u64,
}

struct Chunk {
    slab: Slab,
    /// The last batch of commands that reads it.
    batch: u64,
}

impl Staging {
    /// Bytes that the chunk has room for.
    pub(crate) fn room(&self) -> usize {
        (CHUNK - self.used) as usize
    }

    /// Whether it has none.
    pub(crate) fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// Goes on to the next chunk; `submitted` is the number of the last batch that was handed over, with all that reads this
    /// one. Returns the batch to wait for before the next chunk is filled.
    pub(crate) fn next(&mut self, submitted: u64) -> Option<u64> {
        self.chunks[self.at].batch = submitted;
        (self.at, self.used) = ((self.at + 1) % CHUNKS, 0);
        self.chunks.get(self.at).map(|chunk| chunk.batch)
    }

    /// Copies bytes into the chunk, which has room for them. Returns its buffer and where in it they are.
    pub(crate) fn put(
        &mut self,
        device: &Device,
        bytes: &[u8],
    ) -> Result<(vk::Buffer, u64), GpuError> {
        if self.at == self.chunks.len() {
            let slab = Slab::new(device, CHUNK, Place::Host)?;
            self.chunks.push(Chunk { slab, batch: 0 });
        }
        let slab = &self.chunks[self.at].slab;
        let host = slab.host.expect("the host sees its own memory (`Place::Host`)");
        assert!(bytes.len() <= self.room(), "the ring was asked for its room");
        let at = self.used;
        self.used += bytes.len() as u64;
        // SAFETY: the chunk has room for the bytes (checked), and no command reads this part: those that did are done.
        unsafe {
            let to = host.add(at as usize).as_ptr();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        Ok((slab.buffer, at))
    }

    /// Takes out every chunk.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Slab> {
        (self.at, self.used) = (0, 0);
        std::mem::take(&mut self.chunks).into_iter().map(|chunk| chunk.slab)
    }
}

//! Bytes of the host on their way to memory that it does not see, through a ring of chunks that both see: the host fills one while the
//! device copies another.
//!
//! A thread takes a chunk out of the ring to fill it, and gives it back when the copy is recorded
//! (`transfer/filling.rs`).

use std::collections::VecDeque;

use ash::vk;

use super::slab::{Place, Slab};
use crate::error::GpuError;
use crate::vulkan::logical::Device;

/// Bytes of a chunk.
pub(crate) const CHUNK: usize = 16 << 20;
/// Chunks of the ring. There are more while several threads fill some.
const CHUNKS: usize = 3;
/// Alignment of each filled range: a cache line.
const LINE: usize = 64;

/// The ring; its chunks are made when they are first filled.
#[derive(Default)]
pub(crate) struct Staging {
    /// The chunk that is filled next, unless a thread has it.
    open: Option<Chunk>,
    /// Full chunks, the oldest first.
    full: VecDeque<Chunk>,
}

/// Memory of the ring.
pub(crate) struct Chunk {
    slab: Slab,
    /// Bytes of it that are filled.
    used: usize,
    reads: ChunkReads,
}

/// The last batches that read a chunk, of kernels and of transfers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChunkReads {
    pub(crate) kernels: u64,
    pub(crate) transfers: u64,
}

impl ChunkReads {
    fn and(self, later: Self) -> Self {
        let Self { kernels, transfers } = self;
        Self { kernels: kernels.max(later.kernels), transfers: transfers.max(later.transfers) }
    }

    /// Whether all of them are done, where these are.
    fn are_done(self, done: Self) -> bool {
        self.kernels <= done.kernels && self.transfers <= done.transfers
    }
}

/// An empty chunk, or what is waited for first.
pub(crate) enum NextChunk {
    Empty(Chunk),
    After(ChunkReads),
}

impl Staging {
    /// Takes the chunk that is being filled if it has room for `len` bytes.
    pub(crate) fn take_open(&mut self, len: usize) -> Option<Chunk> {
        self.open.take_if(|chunk| len <= chunk.room())
    }

    /// Takes a chunk with all of its room, once the one that was being filled is full: the oldest if there are enough,
    /// else a new one. `done`: what is done so far.
    pub(crate) fn take_empty(
        &mut self,
        device: &Device,
        done: ChunkReads,
    ) -> Result<NextChunk, GpuError> {
        self.full.extend(self.open.take());
        if self.full.len() < CHUNKS {
            let (slab, reads) =
                (Slab::new(device, CHUNK as u64, Place::Host)?, ChunkReads::default());
            return Ok(NextChunk::Empty(Chunk { slab, used: 0, reads }));
        }
        Ok(match self.full.pop_front() {
            Some(chunk) if chunk.reads.are_done(done) => {
                NextChunk::Empty(Chunk { used: 0, ..chunk })
            }
            Some(chunk) => {
                let reads = chunk.reads;
                self.full.push_front(chunk);
                NextChunk::After(reads)
            }
            None => unreachable!("there are as many as the ring has"),
        })
    }

    /// Takes a chunk back.
    pub(crate) fn give(&mut self, chunk: Chunk) {
        match &self.open {
            None => self.open = Some(chunk),
            Some(_) => self.full.push_back(chunk),
        }
    }

    /// Takes out every chunk.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Slab> {
        let full = std::mem::take(&mut self.full);
        self.open.take().into_iter().chain(full).map(|chunk| chunk.slab)
    }
}

impl Chunk {
    /// Bytes that there is room for.
    pub(crate) fn room(&self) -> usize {
        CHUNK - self.used
    }

    /// The next `len` bytes, to be filled.
    ///
    /// # Panics
    /// If there is no room for them.
    pub(crate) fn next(&mut self, len: usize) -> &mut [u8] {
        assert!(len <= self.room(), "{len} bytes of a chunk that has {}", self.room());
        let host = self.slab.host.expect("the host sees its own memory (`Place::Host`)");
        // SAFETY: the chunk has these bytes (asserted), and is borrowed mutably. No command reads them: those that did were done
        // when the chunk became empty, and later ones read what is before `used`.
        unsafe { std::slice::from_raw_parts_mut(host.add(self.used).as_ptr(), len) }
    }

    /// Counts the next `len` bytes as filled, which these batches read. Returns the buffer and where in it they are.
    pub(crate) fn filled(&mut self, len: usize, by: ChunkReads) -> (vk::Buffer, u64) {
        let at = self.used;
        self.used = (at + len).next_multiple_of(LINE).min(CHUNK);
        self.reads = self.reads.and(by);
        (self.slab.buffer, at as u64)
    }
}

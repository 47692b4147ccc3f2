//! Filling memory that the host does not see, by way of the ring of chunks: others record commands while a chunk is filled.

use std::ops::Range;

use ash::vk;

use crate::commands::PartOfPlace;
use crate::commands::transfers::At;
use crate::commands::turns::PlaceUse;
use crate::device::Gpu;
use crate::memory::staging::{CHUNK, Chunk, NextChunk};

/// Bytes that are filled at once at least, or all that are to come: less is not worth a run of the threads that fill them.
const LEAST: usize = 1 << 20;

/// A chunk outside the ring, which goes back to it in the end.
struct Taken<'a> {
    gpu: &'a Gpu,
    chunk: Option<Chunk>,
}

/// Memory to fill: a part of a slab.
#[derive(Clone, Copy)]
pub(crate) struct ToFill<'a> {
    pub(crate) buffer: vk::Buffer,
    pub(crate) offset: u64,
    /// The place that it is, where the transfer queue fills it. Otherwise the queue of kernels does.
    pub(crate) place: Option<&'a PlaceUse>,
}

impl ToFill<'_> {
    fn from(self, at: usize) -> Self {
        Self { offset: self.offset + at as u64, ..self }
    }
}

impl Gpu {
    /// Records that `len` bytes of the host come to memory. `fill` is told which of them to write, whole
    /// pieces of `piece` bytes, and where; it writes all, and reads nothing of what was there. Others may record meanwhile.
    ///
    /// # Panics
    /// If these are not whole pieces.
    pub(crate) fn stage(
        &self,
        to: ToFill<'_>,
        len: usize,
        piece: usize,
        fill: &mut dyn FnMut(Range<usize>, &mut [u8]),
    ) {
        assert!(len == 0 || piece > 0 && len.is_multiple_of(piece), "{len} bytes by {piece}");
        let mut at = 0;
        while at < len {
            let n = if piece > CHUNK {
                Some(self.stage_large(to.from(at), at..at + piece, fill))
            } else {
                self.stage_some(to, at..len, piece, fill)
            };
            // Where there is no chunk the device failed, and does nothing any more.
            let Some(n) = n else { return };
            at += n;
        }
    }

    /// Stages as many of the bytes `range` as a chunk has room for; how many they are.
    fn stage_some(
        &self,
        to: ToFill<'_>,
        range: Range<usize>,
        piece: usize,
        fill: &mut dyn FnMut(Range<usize>, &mut [u8]),
    ) -> Option<usize> {
        let mut taken = self.take_chunk(LEAST.min(range.len()).max(piece))?;
        let chunk = taken.chunk.as_mut()?;
        let n = (chunk.room() / piece * piece).min(range.len());
        fill(range.start..range.start + n, chunk.next(n));
        let at = At { buffer: to.buffer, offset: to.offset + range.start as u64 };
        self.record(|recorder| match to.place {
            Some(place) => {
                let to = PartOfPlace { place, at, is_first: range.start == 0 };
                recorder.transfer(self.device(), chunk, n, to)
            }
            None => {
                recorder.copy_chunk(chunk, n, (at.buffer, at.offset));
                Ok(())
            }
        })?;
        Some(n)
    }

    /// Stages one piece that no chunk has room for, by way of the host's own memory; how many bytes it has.
    fn stage_large(
        &self,
        to: ToFill<'_>,
        range: Range<usize>,
        fill: &mut dyn FnMut(Range<usize>, &mut [u8]),
    ) -> usize {
        let mut piece = vec![0; range.len()];
        fill(range, &mut piece);
        let mut copy = |part, out: &mut [u8]| out.copy_from_slice(&piece[part]);
        self.stage(to, piece.len(), 1, &mut copy);
        piece.len()
    }

    /// Takes a chunk with room for `len` bytes out of the ring.
    fn take_chunk(&self, len: usize) -> Option<Taken<'_>> {
        loop {
            match self.record(|recorder| recorder.take_chunk(self.device(), len))? {
                NextChunk::Empty(chunk) => return Some(Taken { gpu: self, chunk: Some(chunk) }),
                // Others record meanwhile.
                NextChunk::After(reads) => self.wait_for_reads(reads),
            }
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(chunk) = self.chunk.take() {
            self.gpu.give_chunk(chunk);
        }
    }
}

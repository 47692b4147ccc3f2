//! Buffers: memory that is the device's and, between its works, the host's.

use std::ops::Range;
use std::ptr::NonNull;

use super::filling::ToFill;
use crate::commands::turns::PlaceUse;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::memory::span::{Span, SpanMut};
use crate::memory::{Purpose, Region, lasts};

/// Bytes on a device, at an address that is a multiple of 256.
///
/// Its memory goes back when it is dropped. Commands that were recorded before may still use it: they run before those of its next
/// owner.
pub struct GpuBuffer {
    gpu: Gpu,
    region: Region,
    len: usize,
    /// Of memory that the transfer queue fills, again and again.
    place: Option<PlaceUse>,
}

// SAFETY: the region's pointer is to memory that this buffer alone owns; access follows the borrows of the buffer.
unsafe impl Send for GpuBuffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for GpuBuffer {}

/// Most bytes that the host reads in one copy.
const READ_AT_ONCE: usize = 16 << 20;

impl Gpu {
    /// A buffer of `len` bytes. They are zero, except that recycled ones of [`Purpose::Activations`] and
    /// [`Purpose::Results`] are anything.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] where the device or the limit has no room.
    pub fn buffer(&self, len: usize, purpose: Purpose) -> Result<GpuBuffer, GpuError> {
        let region = self.take_region(len as u64, purpose)?;
        // What a rehearsal reads is zero: nothing is written there.
        let all = lasts(purpose) || self.rehearsal().is_mine();
        let start = if all { region.offset } else { region.untouched };
        self.record_zeros(region.buffer, start..region.offset + region.len);
        Ok(GpuBuffer { gpu: self.clone(), region, len, place: None })
    }
}

impl Gpu {
    /// A buffer for weights that come and go ([`GpuBuffer::write`]). Where the device has a transfer queue, that fills it
    /// while kernels compute that do not use it. Ops that the engine runs ([`Accelerator::run`](brigade_ops::Accelerator::run))
    /// and reads wait for that; other users of its span do not.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn place(&self, len: usize) -> Result<GpuBuffer, GpuError> {
        let mut buffer = self.buffer(len, Purpose::Weights)?;
        if self.has_transfers() && buffer.region.host.is_none() {
            // Its memory had other users, and becomes zero.
            buffer.place = Some(PlaceUse::new(self.recorded()));
        }
        Ok(buffer)
    }

    /// A buffer for as long as a model lives, with these bytes.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn keep(&self, bytes: &[u8]) -> Result<GpuBuffer, GpuError> {
        let region = self.take_region(bytes.len() as u64, Purpose::Weights)?;
        let mut buffer = GpuBuffer { gpu: self.clone(), region, len: bytes.len(), place: None };
        buffer.write(0, bytes);
        Ok(buffer)
    }

    /// A buffer for as long as a model lives, whose bytes `fill` makes. It makes them in the buffer, where the host
    /// sees that. Otherwise it makes them in a chunk, while the device copies another chunk to the buffer. `fill` is
    /// called for one range of bytes after the other, whole pieces of `piece` bytes, and writes all of each. It must
    /// not read the memory: the old bytes mean nothing, and reading or scattered writing may be slow.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    ///
    /// # Panics
    /// If these are not whole pieces.
    pub fn keep_with(
        &self,
        len: usize,
        piece: usize,
        fill: &mut dyn FnMut(Range<usize>, &mut [u8]),
    ) -> Result<GpuBuffer, GpuError> {
        assert!(len == 0 || piece > 0 && len.is_multiple_of(piece), "{len} bytes by {piece}");
        let region = self.take_region(len as u64, Purpose::Weights)?;
        let mut buffer = GpuBuffer { gpu: self.clone(), region, len, place: None };
        match region.host {
            Some(_) => fill(0..len, buffer.bytes_mut()),
            None => {
                let to = ToFill { buffer: region.buffer, offset: region.offset, place: None };
                self.stage(to, len, piece, fill);
            }
        }
        Ok(buffer)
    }

    /// [`Gpu::keep`] for ops that are recorded from now on: it does not wait for those before. Fit for tables of few bytes, which
    /// are twice there until this thread's next [`Milestone`](crate::Milestone) was waited for.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    ///
    /// # Panics
    /// If the bytes are not whole values of four.
    pub fn keep_soon(&self, bytes: &[u8]) -> Result<GpuBuffer, GpuError> {
        // What lasts is needed after a rehearsal, in which no op is recorded.
        if self.rehearsal().is_mine() {
            return self.keep(bytes);
        }
        let region = self.take_region(bytes.len() as u64, Purpose::Weights)?;
        let mut buffer = GpuBuffer { gpu: self.clone(), region, len: bytes.len(), place: None };
        self.copy(self.upload(bytes), buffer.span_mut());
        Ok(buffer)
    }
}

impl GpuBuffer {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Address on the device. It differs between buffers that exist at the same time.
    pub fn address(&self) -> u64 {
        self.region.address
    }

    /// The device that it is on.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The bytes, for the host: waits for every command that was recorded. Where the device is lost they are anything, and
    /// [`Gpu::check`] says so.
    ///
    /// # Panics
    /// If the host does not see them: of weights and states, [`GpuBuffer::read`] brings copies.
    pub fn bytes(&self) -> &[u8] {
        let host = self.host();
        self.gpu.wait();
        // SAFETY: the region has `len` bytes and is this buffer's. Commands that were recorded before are done, and one that writes
        // here can only be recorded with the buffer borrowed mutably.
        unsafe { std::slice::from_raw_parts(host.as_ptr(), self.len) }
    }

    /// The bytes, for the host, while the device may be at work.
    ///
    /// # Safety
    /// All commands that write to the buffer are done, or the device failed.
    ///
    /// # Panics
    /// As [`GpuBuffer::bytes`].
    pub(crate) unsafe fn bytes_now(&self) -> &[u8] {
        // SAFETY: the region has `len` bytes and is this buffer's; no command writes to it (promised by the caller), and one that
        // would can only be recorded with the buffer borrowed mutably.
        unsafe { std::slice::from_raw_parts(self.host().as_ptr(), self.len) }
    }

    /// The bytes, for the host to change, while the device may be at work.
    ///
    /// # Safety
    /// All commands that read or write the buffer are done.
    ///
    /// # Panics
    /// As [`GpuBuffer::bytes`].
    pub(crate) unsafe fn bytes_now_mut(&mut self) -> &mut [u8] {
        // SAFETY: the region has `len` bytes and is this buffer's; no command uses it (promised by the caller), and none can be
        // recorded while it is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.host().as_ptr(), self.len) }
    }

    /// The bytes, for the host to change: waits for every command that was recorded.
    ///
    /// # Panics
    /// As [`GpuBuffer::bytes`]; [`GpuBuffer::write`] brings them there.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let host = self.host();
        self.gpu.wait();
        // SAFETY: as in `bytes`, and no other command can be recorded with the buffer while it is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(host.as_ptr(), self.len) }
    }

    fn host(&self) -> NonNull<u8> {
        self.region.host.expect("a buffer that the host sees")
    }

    /// Appends some of the bytes to `out`: waits for every command that was recorded. Where the device fails in that they are
    /// anything, and [`Gpu::check`] says so.
    ///
    /// # Errors
    /// As [`Gpu::buffer`], where the host reads a copy.
    ///
    /// # Panics
    /// If the range ends beyond the buffer; or, where the host reads a copy, if it is not of whole values of four.
    pub fn read(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), GpuError> {
        if self.region.cached && self.region.host.is_some() {
            out.extend_from_slice(&self.bytes()[range]);
            return Ok(());
        }
        self.come_behind_fills();
        for start in range.clone().step_by(READ_AT_ONCE) {
            let piece = start..range.end.min(start + READ_AT_ONCE);
            let mut copy = self.gpu.buffer(piece.len(), Purpose::Results)?;
            self.gpu.copy(self.span().part(piece), copy.span_mut());
            out.extend_from_slice(copy.bytes());
        }
        self.note_use();
        Ok(())
    }

    /// Of a place: what is recorded from now on comes behind the transfers that fill it.
    pub(crate) fn come_behind_fills(&self) {
        let filled_by = self.place.as_ref().map_or(0, PlaceUse::filled_by);
        if filled_by > 0 {
            self.gpu.record(|recorder| recorder.use_what_came(self.gpu.device(), filled_by));
        }
    }

    /// Whether the transfer queue fills it.
    pub(crate) fn is_place(&self) -> bool {
        self.place.is_some()
    }

    /// Of a place: what was recorded up to now uses it, so that it is filled behind that.
    pub(crate) fn note_use(&self) {
        if let Some(place) = &self.place {
            place.use_by(self.gpu.recorded());
        }
    }

    /// Writes bytes from `at` on, after all commands that were recorded and before those to come.
    ///
    /// # Panics
    /// If they end beyond the buffer.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.len.saturating_sub(at), "{} bytes at {at}", bytes.len());
        if self.region.host.is_some() {
            self.bytes_mut()[at..][..bytes.len()].copy_from_slice(bytes);
        } else {
            let offset = self.region.offset + at as u64;
            let mut copy = |range, out: &mut [u8]| out.copy_from_slice(&bytes[range]);
            let to = ToFill { buffer: self.region.buffer, offset, place: self.place.as_ref() };
            self.gpu.stage(to, bytes.len(), 1, &mut copy);
        }
    }

    /// All of it, for ops that read.
    pub fn span(&self) -> Span<'_> {
        Span::new(self.region.address, self.len)
    }

    /// All of it, for ops that write.
    pub fn span_mut(&mut self) -> SpanMut<'_> {
        SpanMut::new(self.region.address, self.len)
    }
}

impl std::fmt::Debug for GpuBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GpuBuffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Drop for GpuBuffer {
    fn drop(&mut self) {
        // The next owner's commands come behind the transfers to this one.
        self.come_behind_fills();
        self.gpu.give_region(&self.region);
    }
}

//! Exchange with the host in the middle of a device's work: values that the host gets while the device goes on, and
//! memory that it fills for the device's next ops.

use super::buffer::GpuBuffer;
use super::milestone::Fetch;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::Span;
use brigade_ops::Part;

/// Memory that the host fills again and again, each time for ops to read at once.
pub struct Inbox {
    gpu: Gpu,
    buffer: Option<GpuBuffer>,
    /// The batch that the last op which reads it is in.
    read_in: u64,
}

impl Gpu {
    /// Has the device begin with all that was recorded.
    pub fn begin(&self) {
        self.hand_over(false);
        self.hand_over_transfers();
    }

    /// One copy of several spans, one behind the other, for the host: on its way at once.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn fetch_all(&self, from: &[Span<'_>]) -> Result<Fetch, GpuError> {
        let len = from.iter().map(Span::len).sum();
        let mut buffer = self.buffer(len, Purpose::Results)?;
        let mut left = buffer.span_mut();
        for span in from {
            let (mine, rest) = left.split_at(span.len());
            self.copy(*span, mine);
            left = rest;
        }
        Ok(Fetch::written(buffer))
    }

    /// Whether this thread's ops are noted only, and compute nothing: [`Gpu::rehearse`].
    pub fn is_rehearsing(&self) -> bool {
        self.rehearsal().is_mine()
    }
}

impl Inbox {
    /// An empty one of a device.
    pub fn of(gpu: &Gpu) -> Self {
        Self { gpu: gpu.clone(), buffer: None, read_in: 0 }
    }

    /// Fills it with `bytes`, and has `read` record the ops that read them. It waits only for those that read what was here before.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn put(&mut self, bytes: &[u8], read: &mut dyn FnMut(Part<'_>)) -> Result<(), GpuError> {
        let gpu = &self.gpu;
        let is_large_enough = |buffer: &GpuBuffer| buffer.len() >= bytes.len();
        let buffer = match self.buffer.take().filter(is_large_enough) {
            Some(buffer) => buffer,
            None => {
                let buffer = gpu.buffer(bytes.len(), Purpose::Activations)?;
                // Others had the memory before, and ops of theirs may be on their way.
                self.read_in = gpu.recorded();
                buffer
            }
        };
        let buffer = self.buffer.insert(buffer);
        gpu.hand_over_up_to(self.read_in);
        gpu.wait_for(self.read_in);
        if gpu.check().is_ok() {
            // SAFETY: all commands that read or write the buffer are in that batch or before it (below and above), and done.
            let to = unsafe { buffer.bytes_now_mut() };
            to[..bytes.len()].copy_from_slice(bytes);
        }
        read(Part::of(buffer, 0..bytes.len()));
        self.read_in = gpu.recorded();
        Ok(())
    }
}

//! Points in a device's work, and results that the host has from there on while the device goes on with later work.

use std::time::Duration;

use super::buffer::GpuBuffer;
use crate::commands::timeline::Watch;
use crate::commands::turns::Queue;
use crate::device::Gpu;
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::Span;

/// A point in a device's work: all that was recorded before it has been handed over. It is reached when that is done.
pub struct Milestone {
    gpu: Gpu,
    batch: u64,
    /// The last batch of transfers before it.
    transfers: u64,
    /// Last progress seen of each queue, when a thread looks from time to time.
    kernels_watch: Option<Watch>,
    transfers_watch: Option<Watch>,
}

/// Bytes on their way to the host. They are there when what was recorded up to now is done; the device may be at work then.
pub struct Fetch {
    /// Buffer with the results. It has no other user, so that no later command writes to it.
    buffer: GpuBuffer,
    batch: u64,
}

impl Gpu {
    /// Hands over all that was recorded. The tables that this thread brought with [`Gpu::upload`] belong to it: they are gone once
    /// this point was waited for.
    pub fn milestone(&self) -> Milestone {
        let (batch, transfers) = (self.hand_over(true), self.hand_over_transfers());
        let (kernels_watch, transfers_watch) = (None, None);
        Milestone { gpu: self.clone(), batch, transfers, kernels_watch, transfers_watch }
    }

    /// A copy of bytes for the host, on its way at once.
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn fetch(&self, from: Span<'_>) -> Result<Fetch, GpuError> {
        let mut buffer = self.buffer(from.len(), Purpose::Results)?;
        self.copy(from, buffer.span_mut());
        Ok(Fetch::written(buffer))
    }
}

impl Milestone {
    /// Waits for so long at most; whether it is reached. A device that failed reaches every point: [`Milestone::wait`] tells.
    pub fn is_reached_within(&mut self, within: Duration) -> bool {
        let Self { gpu, batch, transfers, kernels_watch, transfers_watch } = self;
        gpu.is_done_within(Queue::Kernels, *batch, within, kernels_watch)
            && gpu.is_done_within(Queue::Transfers, *transfers, within, transfers_watch)
    }

    /// Waits until it is reached.
    ///
    /// # Errors
    /// The first error that there was, in this or anything before.
    pub fn wait(self) -> Result<(), GpuError> {
        self.gpu.wait_for(self.batch);
        self.gpu.wait_for_batch(Queue::Transfers, self.transfers);
        self.gpu.free_tables();
        self.gpu.check()
    }
}

impl Fetch {
    /// A buffer that all has been recorded for that writes to it.
    pub(crate) fn written(buffer: GpuBuffer) -> Self {
        let batch = buffer.gpu().recorded();
        Self { buffer, batch }
    }

    /// The bytes: waits for what was recorded up to the fetch. Where the device is lost they are anything, and [`Gpu::check`] says
    /// so.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.gpu().hand_over_up_to(self.batch);
        self.buffer.gpu().wait_for(self.batch);
        // SAFETY: commands that write to the buffer were recorded before this was made. They are in that batch or before it, and
        // done. None is added: nobody else has the buffer, and this lends it to no command.
        unsafe { self.buffer.bytes_now() }
    }
}

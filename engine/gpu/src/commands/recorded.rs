//! Command buffers, and what is recorded in them: a batch that comes again is handed over again, without being recorded.
//!
//! A stage does the same for every ubatch of as many rows: the same kernels on the same memory. Differences, such as
//! tokens, positions and pages, stand in tables that the host writes before. So most batches of a forward pass have
//! been there before.

use std::collections::HashMap;

use ash::vk;

use super::batch::Batch;
use crate::error::GpuError;
use crate::vulkan::logical::Device;

/// Most command buffers that are kept: batches of some twenty kinds of ubatches. There are more only while more are on their way.
const MOST: usize = 128;

/// All command buffers of a device.
pub(crate) struct Recorded {
    pool: vk::CommandPool,
    /// The layout of all pipelines.
    layout: vk::PipelineLayout,
    buffers: Vec<Buffer>,
    /// Places of the batches that may come again, by their fingerprint.
    found: HashMap<u64, usize>,
    n_recorded: u64,
}

struct Buffer {
    commands: vk::CommandBuffer,
    batch: Batch,
    fingerprint: u64,
    /// Number of the last batch that was handed over with it.
    number: u64,
}

impl Recorded {
    pub(crate) fn new(pool: vk::CommandPool, layout: vk::PipelineLayout) -> Self {
        Self { pool, layout, buffers: Vec::new(), found: HashMap::new(), n_recorded: 0 }
    }

    /// Number of batches recorded so far; the others used an earlier recording.
    pub(crate) fn n_recorded(&self) -> u64 {
        self.n_recorded
    }

    /// Commands that do what `batch` does, which is empty then. They are handed over as number `number` by the caller; batches
    /// up to `done` are done.
    pub(crate) fn commands(
        &mut self,
        device: &Device,
        batch: &mut Batch,
        number: u64,
        done: u64,
    ) -> Result<vk::CommandBuffer, GpuError> {
        let fingerprint = batch.fingerprint();
        let found = self.found.get(&fingerprint).map(|at| &mut self.buffers[*at]);
        // It may be on its way: such buffers are recorded so that they can be there twice.
        if let Some(buffer) = found.filter(|it| it.batch.is_same(batch)) {
            buffer.number = number;
            batch.clear();
            return Ok(buffer.commands);
        }
        let at = self.free(device, done)?;
        let buffer = &mut self.buffers[at];
        // SAFETY: the buffer is not pending (`free`). What steps name is of this device: the caller gathered it.
        unsafe { batch.record(device, self.layout, buffer.commands, None) }?;
        std::mem::swap(&mut buffer.batch, batch);
        batch.clear();
        (buffer.fingerprint, buffer.number) = (fingerprint, number);
        if buffer.batch.may_come_again() {
            self.found.insert(fingerprint, at);
        }
        self.n_recorded += 1;
        Ok(buffer.commands)
    }

    /// Commands that do what `batch` does and note the times of its runs. They are handed over as number `number`, for once.
    pub(crate) fn timed_commands(
        &mut self,
        device: &Device,
        batch: &mut Batch,
        number: u64,
        done: u64,
        stamps: vk::QueryPool,
    ) -> Result<vk::CommandBuffer, GpuError> {
        let at = self.free(device, done)?;
        let buffer = &mut self.buffers[at];
        // SAFETY: the buffer is not pending (`free`). What steps name is of this device: the caller gathered it, no more runs
        // than a batch has at most, for which `stamps` has room.
        unsafe { batch.record(device, self.layout, buffer.commands, Some(stamps)) }?;
        batch.clear();
        (buffer.fingerprint, buffer.number) = (0, number);
        self.n_recorded += 1;
        Ok(buffer.commands)
    }

    /// A buffer that is not on its way: a new one, or the one that was not used for the longest time.
    fn free(&mut self, device: &Device, done: u64) -> Result<usize, GpuError> {
        let idle = (0..self.buffers.len()).filter(|at| self.buffers[*at].number <= done);
        let oldest = idle.min_by_key(|at| self.buffers[*at].number);
        if let Some(at) = oldest.filter(|_| self.buffers.len() >= MOST) {
            let old = self.buffers[at].fingerprint;
            if self.found.get(&old) == Some(&at) {
                self.found.remove(&old);
            }
            return Ok(at);
        }
        // SAFETY: the pool is of this device, and used under the recorder's lock alone.
        let commands = unsafe { command_buffer(device, self.pool) }?;
        self.buffers.push(Buffer { commands, batch: Batch::default(), fingerprint: 0, number: 0 });
        Ok(self.buffers.len() - 1)
    }

    /// Gives the pool with all its buffers, and the layout, back.
    ///
    /// # Safety
    /// The device does nothing any more, and these are not used again.
    pub(crate) unsafe fn destroy(&mut self, device: &Device) {
        // SAFETY: promised by the caller.
        unsafe {
            device.raw.destroy_command_pool(self.pool, None);
            device.raw.destroy_pipeline_layout(self.layout, None);
        }
    }
}

/// A new command buffer of a pool.
///
/// # Safety
/// The pool is of this device, and nobody else uses it meanwhile.
pub(super) unsafe fn command_buffer(
    device: &Device,
    pool: vk::CommandPool,
) -> Result<vk::CommandBuffer, GpuError> {
    let info = vk::CommandBufferAllocateInfo::default()
        .command_pool(pool)
        .level(vk::CommandBufferLevel::PRIMARY)
        .command_buffer_count(1);
    // SAFETY: promised by the caller.
    let buffers = unsafe { device.raw.allocate_command_buffers(&info) };
    Ok(buffers.map_err(GpuError::of("a command buffer"))?[0])
}

//! The transfer queue: bytes of chunks come to places in the device's memory while the queue of kernels computes.
//! [`Turns`](super::turns::Turns) says what waits for what.

use ash::vk;

use super::recorded::command_buffer;
use super::timeline::Timeline;
use super::turns::Handing;
use crate::error::GpuError;
use crate::vulkan::logical::{Device, OpenQueue};

/// Bytes after which copies are handed over: fewer take the device less time than the host for handing them over.
const AT_ONCE: u64 = 4 << 20;

/// A part of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) buffer: vk::Buffer,
    pub(crate) offset: u64,
}

enum Step {
    /// All copies before are done: the next one may write where one of them writes.
    Barrier,
    Copy {
        from: At,
        to: At,
        len: u64,
    },
}

/// The transfer queue's commands.
pub(crate) struct Transfers {
    queue: vk::Queue,
    pool: vk::CommandPool,
    timeline: Timeline,
    /// Each with the number of the batch that it was handed over as.
    buffers: Vec<(vk::CommandBuffer, u64)>,
    open: Vec<Step>,
    /// Bytes of the open batch.
    bytes: u64,
}

impl Transfers {
    /// The transfer queue of a device. `timeline` counts its batches.
    pub(crate) fn new(
        device: &Device,
        of: &OpenQueue,
        timeline: Timeline,
    ) -> Result<Self, GpuError> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(of.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the device is open and the info is complete.
        let pool = unsafe { device.raw.create_command_pool(&info, None) }
            .map_err(GpuError::of("a queue's parts"))?;
        let (buffers, open) = (Vec::new(), Vec::new());
        Ok(Self { queue: of.queue, pool, timeline, buffers, open, bytes: 0 })
    }

    /// Counts the batches that are done.
    pub(crate) fn timeline(&self) -> Timeline {
        self.timeline
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Whether the open batch is large enough to be handed over.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes >= AT_ONCE
    }

    /// What comes next may write where a copy of the open batch writes.
    pub(crate) fn barrier(&mut self) {
        self.open.push(Step::Barrier);
    }

    /// Adds a copy.
    pub(crate) fn copy(&mut self, from: At, to: At, len: u64) {
        self.open.push(Step::Copy { from, to, len });
        self.bytes += len;
    }

    /// Hands the open batch over; `kernels` counts those of the other queue.
    pub(crate) fn hand_over(
        &mut self,
        device: &Device,
        handing: Handing,
        kernels: Timeline,
    ) -> Result<(), GpuError> {
        let commands = self.free(device, handing.number)?;
        self.record(device, commands)?;
        let buffers = [vk::CommandBufferSubmitInfo::default().command_buffer(commands)];
        let (signals, waits) =
            ([self.timeline.reached(handing.number)], [kernels.reached(handing.behind)]);
        let info = vk::SubmitInfo2::default()
            .command_buffer_infos(&buffers)
            .wait_semaphore_infos(&waits[..usize::from(handing.behind > 0)])
            .signal_semaphore_infos(&signals);
        // SAFETY: both queues are used under the recorder's lock alone. Chunks and places that the copies name live until
        // these are done: slabs are destroyed after that was waited for.
        unsafe { device.raw.queue_submit2(self.queue, &[info], vk::Fence::null()) }
            .map_err(GpuError::of("work"))?;
        self.open.clear();
        self.bytes = 0;
        Ok(())
    }

    /// A command buffer that is not on its way, for batch `number`.
    fn free(&mut self, device: &Device, number: u64) -> Result<vk::CommandBuffer, GpuError> {
        let done = self.timeline.done(device)?;
        if let Some(idle) = self.buffers.iter_mut().find(|(_, last)| *last <= done) {
            idle.1 = number;
            return Ok(idle.0);
        }
        // SAFETY: the pool is of this device, and used under the recorder's lock alone.
        let commands = unsafe { command_buffer(device, self.pool) }?;
        self.buffers.push((commands, number));
        Ok(commands)
    }

    /// Records the open batch, which comes after all copies before it.
    fn record(&self, device: &Device, commands: vk::CommandBuffer) -> Result<(), GpuError> {
        let raw = &device.raw;
        let failed = GpuError::of("a command buffer");
        let info = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the buffer is not pending (`free`), and its pool allows that beginning resets it. Ranges lie in their
        // buffers, which are of this device.
        unsafe {
            raw.begin_command_buffer(commands, &info).map_err(&failed)?;
            barrier(device, commands);
            for step in &self.open {
                match *step {
                    Step::Barrier => barrier(device, commands),
                    Step::Copy { from, to, len } => {
                        let (src_offset, dst_offset) = (from.offset, to.offset);
                        let region = vk::BufferCopy { src_offset, dst_offset, size: len };
                        raw.cmd_copy_buffer(commands, from.buffer, to.buffer, &[region]);
                    }
                }
            }
            raw.end_command_buffer(commands).map_err(&failed)
        }
    }

    /// Gives the pool and the semaphore back.
    ///
    /// # Safety
    /// The device does nothing any more, and nothing of this is used again.
    pub(crate) unsafe fn destroy(&mut self, device: &Device) {
        // SAFETY: promised by the caller.
        unsafe {
            device.raw.destroy_command_pool(self.pool, None);
            self.timeline.destroy(device);
        }
    }
}

/// Records that all copies before are done, also those of earlier batches. The queue may know no stages but copies.
fn barrier(device: &Device, commands: vk::CommandBuffer) {
    let barriers = [vk::MemoryBarrier2::default()
        .src_stage_mask(vk::PipelineStageFlags2::TRANSFER)
        .src_access_mask(vk::AccessFlags2::TRANSFER_WRITE)
        .dst_stage_mask(vk::PipelineStageFlags2::TRANSFER)
        .dst_access_mask(vk::AccessFlags2::TRANSFER_WRITE)];
    let info = vk::DependencyInfo::default().memory_barriers(&barriers);
    // SAFETY: the buffer is being recorded.
    unsafe { device.raw.cmd_pipeline_barrier2(commands, &info) };
}

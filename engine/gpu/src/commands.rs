//! Commands: recorded one after the other, handed to the device in batches, waited for when the host reads.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ash::vk;

use crate::error::GpuError;
use crate::logical::Device;
use crate::options::GpuOptions;
use crate::shader::MAX_PUSH;
use crate::staging::Staging;
use crate::upload::Uploads;

/// How a dispatch stands to the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// It runs when all before it are done, and sees what they wrote.
    After,
    /// It may run at the same time as the one before it: neither writes what the other uses.
    Beside,
}

/// Dispatches that are handed to the device together after a wait, so that it begins while the host goes on; and later ones
/// at most: each batch has twice as many as the one before.
const FIRST_BATCH: usize = 16;
const LAST_BATCH: usize = 256;

/// Steps of waiting after which it is looked whether the device comes on.
const STEP: Duration = Duration::from_secs(1);

/// What was recorded and is not done yet.
pub(crate) struct Recorder {
    pool: vk::CommandPool,
    /// Counts the batches that are done.
    done: vk::Semaphore,
    layout: vk::PipelineLayout,
    /// The batch that is being recorded, and its dispatches.
    open: Option<vk::CommandBuffer>,
    dispatches: usize,
    /// Dispatches that it shall have.
    batch: usize,
    /// Batches on their way, with their numbers.
    flying: VecDeque<(vk::CommandBuffer, u64)>,
    idle: Vec<vk::CommandBuffer>,
    submitted: u64,
    /// Something was recorded, or left out, that the next dispatch stays behind in any case.
    owed_barrier: bool,
    patience: Duration,
    lose_after: Option<u64>,
    pub(crate) uploads: Uploads,
    staging: Staging,
}

/// One run of a kernel.
pub(crate) struct Run<'a> {
    pub(crate) order: Order,
    pub(crate) pipeline: vk::Pipeline,
    pub(crate) push: &'a [u8],
    pub(crate) groups: [u32; 3],
}

impl Recorder {
    pub(crate) fn new(device: &Device, options: &GpuOptions) -> Result<Self, GpuError> {
        let raw = &device.raw;
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(device.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        let mut timeline =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let semaphore = vk::SemaphoreCreateInfo::default().push_next(&mut timeline);
        let ranges = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(MAX_PUSH as u32)];
        let layout = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&ranges);
        let failed = GpuError::of("a queue's parts");
        // SAFETY: the device is open and the infos are complete. What was created before one that fails goes with the
        // device, which is given up then.
        unsafe {
            Ok(Self {
                pool: raw.create_command_pool(&info, None).map_err(&failed)?,
                done: raw.create_semaphore(&semaphore, None).map_err(&failed)?,
                layout: raw.create_pipeline_layout(&layout, None).map_err(&failed)?,
                open: None,
                dispatches: 0,
                batch: FIRST_BATCH,
                flying: VecDeque::new(),
                idle: Vec::new(),
                submitted: 0,
                owed_barrier: false,
                patience: options.patience,
                lose_after: options.lose_after,
                uploads: Uploads::default(),
                staging: Staging::default(),
            })
        }
    }

    /// The layout of every pipeline: push constants.
    pub(crate) fn layout(&self) -> vk::PipelineLayout {
        self.layout
    }

    /// Records a run of a kernel.
    pub(crate) fn run(&mut self, device: &Device, run: &Run<'_>) -> Result<(), GpuError> {
        if run.groups.contains(&0) {
            self.owed_barrier |= run.order == Order::After;
            return Ok(());
        }
        let commands = self.begin(device)?;
        if run.order == Order::After || self.owed_barrier {
            barrier(device, commands, vk::PipelineStageFlags2::COMPUTE_SHADER);
            self.owed_barrier = false;
        }
        let [x, y, z] = run.groups;
        let (point, stage) = (vk::PipelineBindPoint::COMPUTE, vk::ShaderStageFlags::COMPUTE);
        // SAFETY: the buffer is being recorded; pipeline and layout are of this device and fit each other; the
        // push constants are within the layout's range.
        unsafe {
            device.raw.cmd_bind_pipeline(commands, point, run.pipeline);
            device.raw.cmd_push_constants(commands, self.layout, stage, 0, run.push);
            device.raw.cmd_dispatch(commands, x, y, z);
        }
        self.dispatches += 1;
        if self.dispatches >= self.batch {
            self.submit(device)?;
            self.batch = (2 * self.batch).min(LAST_BATCH);
        }
        Ok(())
    }

    /// Records that bytes become zero, after all before.
    pub(crate) fn zeros(
        &mut self,
        device: &Device,
        buffer: vk::Buffer,
        range: std::ops::Range<u64>,
    ) -> Result<(), GpuError> {
        let commands = self.begin(device)?;
        barrier(device, commands, vk::PipelineStageFlags2::TRANSFER);
        let len = range.end - range.start;
        // SAFETY: the buffer is being recorded; the range lies in its buffer, and both ends are multiples of 4.
        unsafe { device.raw.cmd_fill_buffer(commands, buffer, range.start, len, 0) };
        // What runs beside the dispatch before it stays behind this.
        self.owed_barrier = true;
        Ok(())
    }

    /// Records that bytes of the host come to `to` from `offset` on, after all before. The bytes are read at once; the device
    /// may still copy some when this returns.
    pub(crate) fn stage(
        &mut self,
        device: &Device,
        to: vk::Buffer,
        mut offset: u64,
        mut bytes: &[u8],
    ) -> Result<(), GpuError> {
        while !bytes.is_empty() {
            if self.staging.is_full() {
                // What was filled is on its way while the host fills the next chunk.
                self.submit(device)?;
                if let Some(batch) = self.staging.next(self.submitted) {
                    self.wait_for(device, batch)?;
                }
            }
            let (piece, rest) = bytes.split_at(self.staging.room().min(bytes.len()));
            let (from, at) = self.staging.put(device, piece)?;
            let commands = self.begin(device)?;
            barrier(device, commands, vk::PipelineStageFlags2::TRANSFER);
            let len = piece.len() as u64;
            let regions = [vk::BufferCopy { src_offset: at, dst_offset: offset, size: len }];
            // SAFETY: the buffer is being recorded, and both ranges lie in their buffers. Nobody writes the chunk before the copy
            // is done: the ring waits for the batch (above).
            unsafe { device.raw.cmd_copy_buffer(commands, from, to, &regions) };
            self.owed_barrier = true;
            (offset, bytes) = (offset + len, rest);
        }
        Ok(())
    }

    /// Hands over what was recorded, and waits until all is done.
    pub(crate) fn wait(&mut self, device: &Device) -> Result<(), GpuError> {
        self.submit(device)?;
        self.batch = FIRST_BATCH;
        self.wait_for(device, self.submitted)
    }

    /// Waits until a batch that was handed over is done.
    fn wait_for(&mut self, device: &Device, batch: u64) -> Result<(), GpuError> {
        let (semaphores, values) = ([self.done], [batch]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let mut seen = self.progress(device)?;
        let mut since = Instant::now();
        loop {
            let step = STEP.min(self.patience).as_nanos() as u64;
            // SAFETY: the semaphore is of this device.
            match unsafe { device.raw.wait_semaphores(&info, step) } {
                Ok(()) => break,
                Err(vk::Result::TIMEOUT) => {}
                Err(error) => return Err(GpuError::of("to wait")(error)),
            }
            let now = self.progress(device)?;
            if now > seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() >= self.patience {
                return Err(GpuError::TimedOut { seconds: self.patience.as_secs() });
            }
        }
        self.recycle(batch);
        Ok(())
    }

    /// Batches that are done.
    fn progress(&self, device: &Device) -> Result<u64, GpuError> {
        // SAFETY: the semaphore is of this device.
        unsafe { device.raw.get_semaphore_counter_value(self.done) }
            .map_err(GpuError::of("to look at its work"))
    }

    /// The batch that is being recorded, or a new one.
    fn begin(&mut self, device: &Device) -> Result<vk::CommandBuffer, GpuError> {
        if let Some(commands) = self.open {
            return Ok(commands);
        }
        let done = self.progress(device)?;
        self.recycle(done);
        let failed = GpuError::of("a command buffer");
        let commands = match self.idle.pop() {
            Some(commands) => commands,
            None => {
                let info = vk::CommandBufferAllocateInfo::default()
                    .command_pool(self.pool)
                    .level(vk::CommandBufferLevel::PRIMARY)
                    .command_buffer_count(1);
                // SAFETY: the pool is of this device, and used under the recorder's lock alone.
                unsafe { device.raw.allocate_command_buffers(&info) }.map_err(&failed)?[0]
            }
        };
        let info = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the buffer is not pending: it is new, or its batch is done. Beginning resets it.
        unsafe { device.raw.begin_command_buffer(commands, &info) }.map_err(&failed)?;
        self.open = Some(commands);
        self.dispatches = 0;
        Ok(commands)
    }

    /// Hands the batch over, without waiting.
    fn submit(&mut self, device: &Device) -> Result<(), GpuError> {
        let Some(commands) = self.open.take() else { return Ok(()) };
        if self.lose_after.is_some_and(|batches| self.submitted >= batches) {
            return Err(GpuError::Lost);
        }
        barrier(device, commands, vk::PipelineStageFlags2::HOST);
        let failed = GpuError::of("work");
        // SAFETY: the buffer is being recorded.
        unsafe { device.raw.end_command_buffer(commands) }.map_err(&failed)?;
        let number = self.submitted + 1;
        let buffers = [vk::CommandBufferSubmitInfo::default().command_buffer(commands)];
        let signals = [vk::SemaphoreSubmitInfo::default()
            .semaphore(self.done)
            .value(number)
            .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)];
        let info = vk::SubmitInfo2::default()
            .command_buffer_infos(&buffers)
            .signal_semaphore_infos(&signals);
        // SAFETY: the queue is used under the recorder's lock alone; what the commands use lives until they are done:
        // pipelines as long as the device, memory until its slab is destroyed, which waits.
        unsafe { device.raw.queue_submit2(device.queue, &[info], vk::Fence::null()) }
            .map_err(&failed)?;
        self.submitted = number;
        self.flying.push_back((commands, number));
        Ok(())
    }

    /// Command buffers of batches up to `done` are free again.
    fn recycle(&mut self, done: u64) {
        while self.flying.front().is_some_and(|(_, number)| *number <= done) {
            let Some((commands, _)) = self.flying.pop_front() else { break };
            self.idle.push(commands);
        }
    }

    /// Gives everything back.
    ///
    /// # Safety
    /// The device does nothing any more.
    pub(crate) unsafe fn destroy(&mut self, device: &Device) {
        // SAFETY: promised by the caller; nothing of this is used afterwards.
        unsafe {
            for chunk in self.uploads.drain().chain(self.staging.drain()) {
                chunk.destroy(device);
            }
            device.raw.destroy_command_pool(self.pool, None);
            device.raw.destroy_semaphore(self.done, None);
            device.raw.destroy_pipeline_layout(self.layout, None);
        }
    }
}

/// All kernels and fills before are done, and what they wrote is seen by what follows at `stage`.
fn barrier(device: &Device, commands: vk::CommandBuffer, stage: vk::PipelineStageFlags2) {
    let work = vk::PipelineStageFlags2::COMPUTE_SHADER | vk::PipelineStageFlags2::TRANSFER;
    let (read, write) = (vk::AccessFlags2::MEMORY_READ, vk::AccessFlags2::MEMORY_WRITE);
    let barriers = [vk::MemoryBarrier2::default()
        .src_stage_mask(work)
        .src_access_mask(write)
        .dst_stage_mask(stage)
        .dst_access_mask(read | write)];
    let info = vk::DependencyInfo::default().memory_barriers(&barriers);
    // SAFETY: the buffer is being recorded.
    unsafe { device.raw.cmd_pipeline_barrier2(commands, &info) };
}

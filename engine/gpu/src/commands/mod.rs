//! Commands: gathered one after the other, handed to the device in batches, waited for when the host reads.

pub(super) mod batch;
pub(super) mod dispatch;
pub(super) mod recorded;
pub(super) mod rehearsal;
pub(super) mod timeline;
pub(super) mod timer;
pub(super) mod transfers;
pub(super) mod turns;

use ash::vk;

use crate::error::GpuError;
use crate::memory::staging::{Chunk, ChunkReads, NextChunk, Staging};
use crate::memory::upload::Uploads;
use crate::pipelines::shader::MAX_PUSH;
use crate::vulkan::logical::Device;
use batch::Batch;
use brigade_ops::{DeviceOptions, Handed, KernelTime};
use dispatch::Work;
use recorded::Recorded;
use timeline::Timeline;
use timer::Timer;
use transfers::{At, Transfers};
use turns::{Handing, PlaceUse, Queue, Turns};

/// Order of a dispatch and the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The dispatch runs when all before it are done, and sees what they wrote.
    After,
    /// The dispatch may run at the same time as the one before it: neither writes what the other uses.
    Beside,
}

/// Dispatches in the first batch after a wait, few so that the device begins while the host goes on, and most in a
/// later one. Each batch has twice as many as the one before.
const FIRST_BATCH: usize = 16;
const LAST_BATCH: usize = 256;

/// Commands that were gathered and are not done yet.
pub(crate) struct Recorder {
    timeline: Timeline,
    layout: vk::PipelineLayout,
    /// Batch that is handed over next.
    open: Batch,
    /// Runs of kernels that it shall have.
    batch: usize,
    /// The run that it ends with, if it ends with one that came after all before.
    last: Option<Work>,
    recorded: Recorded,
    /// The transfer queue, where the device has one.
    transfers: Option<Transfers>,
    /// Batches that were handed over, and what they wait for.
    turns: Turns,
    /// Runs of kernels that were handed over.
    runs: u64,
    /// Something was gathered, or left out, that the next run stays behind in any case.
    owed_barrier: bool,
    lose_after: Option<u64>,
    pub(crate) uploads: Uploads,
    staging: Staging,
    /// Timer of kernels, with [`DeviceOptions::timed`].
    timer: Option<Timer>,
}

/// Counts of the batches that are done, of both queues.
#[derive(Clone, Copy)]
pub(crate) struct Timelines {
    pub(crate) kernels: Timeline,
    /// Of the transfer queue, where the device has one.
    pub(crate) transfers: Option<Timeline>,
}

/// Bytes of a place that are filled.
#[derive(Clone, Copy)]
pub(crate) struct PartOfPlace<'a> {
    pub(crate) place: &'a PlaceUse,
    /// Where they lie, by the buffer of their slab.
    pub(crate) at: At,
    /// Whether they are the first of what the place is filled with.
    pub(crate) is_first: bool,
}

impl Recorder {
    pub(crate) fn new(
        device: &Device,
        timelines: Timelines,
        options: &DeviceOptions,
    ) -> Result<Self, GpuError> {
        let raw = &device.raw;
        let Timelines { kernels: timeline, transfers } = timelines;
        let transfers = device.transfers.as_ref().zip(transfers);
        let transfers =
            transfers.map(|(of, timeline)| Transfers::new(device, of, timeline)).transpose()?;
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(device.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        let ranges = [vk::PushConstantRange::default()
            .stage_flags(vk::ShaderStageFlags::COMPUTE)
            .size(MAX_PUSH as u32)];
        let layout = vk::PipelineLayoutCreateInfo::default().push_constant_ranges(&ranges);
        let timer = options.timed.then(|| Timer::new(device, LAST_BATCH)).transpose()?;
        let failed = GpuError::of("a queue's parts");
        // SAFETY: the device is open and the infos are complete. What was created before one that fails goes with the
        // device, which is given up then.
        unsafe {
            let pool = raw.create_command_pool(&info, None).map_err(&failed)?;
            let layout = raw.create_pipeline_layout(&layout, None).map_err(&failed)?;
            Ok(Self {
                timeline,
                layout,
                open: Batch::default(),
                batch: FIRST_BATCH,
                last: None,
                recorded: Recorded::new(pool, layout),
                transfers,
                turns: Turns::default(),
                runs: 0,
                owed_barrier: false,
                lose_after: options.lose_after,
                uploads: Uploads::default(),
                staging: Staging::default(),
                timer,
            })
        }
    }

    /// The layout of every pipeline: push constants.
    pub(crate) fn layout(&self) -> vk::PipelineLayout {
        self.layout
    }

    /// Counts of the work handed over so far.
    pub(crate) fn handed(&self) -> Handed {
        Handed { runs: self.runs, batches: self.n_handed(), recorded: self.recorded.n_recorded() }
    }

    /// The run that was added last, if it came after all before and is not handed over.
    pub(crate) fn last(&self) -> Option<&Work> {
        self.last.as_ref()
    }

    /// Puts a run in the place of the last one ([`Recorder::last`]).
    pub(crate) fn replace_last(&mut self, pipeline: vk::Pipeline, work: &Work) {
        self.open.replace_run(pipeline, work.push(), work.groups);
        if let Some(timer) = &mut self.timer {
            timer.replace_run(work);
        }
        self.last = Some(*work);
    }

    /// Adds a run of a kernel.
    pub(crate) fn run(
        &mut self,
        device: &Device,
        order: Order,
        pipeline: vk::Pipeline,
        work: &Work,
    ) -> Result<(), GpuError> {
        self.last = None;
        if work.groups.contains(&0) {
            self.owed_barrier |= order == Order::After;
            return Ok(());
        }
        if order == Order::After || self.owed_barrier {
            self.open.barrier(vk::PipelineStageFlags2::COMPUTE_SHADER);
            self.owed_barrier = false;
        }
        self.open.run(pipeline, work.push(), work.groups);
        if let Some(timer) = &mut self.timer {
            timer.run(work);
        }
        self.last = (order == Order::After).then_some(*work);
        if self.open.runs() >= self.batch {
            self.submit(device)?;
            self.batch = (2 * self.batch).min(LAST_BATCH);
        }
        Ok(())
    }

    /// Adds that bytes become zero, after all before. The range starts and ends at multiples of 4.
    pub(crate) fn zeros(&mut self, buffer: vk::Buffer, range: std::ops::Range<u64>) {
        self.last = None;
        self.open.barrier(vk::PipelineStageFlags2::TRANSFER);
        self.open.fill(buffer, range);
        // What runs beside the run before it stays behind this.
        self.owed_barrier = true;
    }

    /// Takes a chunk with room for `len` bytes out of the ring, or says what is waited for first.
    pub(crate) fn take_chunk(
        &mut self,
        device: &Device,
        len: usize,
    ) -> Result<NextChunk, GpuError> {
        if let Some(chunk) = self.staging.take_open(len) {
            return Ok(NextChunk::Empty(chunk));
        }
        // What was filled is on its way while the host fills the next chunk.
        self.submit(device)?;
        self.submit_transfers(device)?;
        let transfers = self.transfers.as_ref().map(Transfers::timeline);
        let transfers = transfers.map_or(Ok(0), |timeline| timeline.done(device))?;
        let done = ChunkReads { kernels: self.timeline.done(device)?, transfers };
        self.staging.take_empty(device, done)
    }

    /// Adds that the next `len` bytes of a chunk come to a buffer, after all before.
    pub(crate) fn copy_chunk(&mut self, chunk: &mut Chunk, len: usize, to: (vk::Buffer, u64)) {
        self.last = None;
        self.open.barrier(vk::PipelineStageFlags2::TRANSFER);
        // This part of the chunk is not written before the copy is done: the ring waits for the batch (above).
        let from = chunk.filled(len, ChunkReads { kernels: self.n_handed() + 1, transfers: 0 });
        self.open.copy(from, to, len as u64);
        self.owed_barrier = true;
    }

    /// Adds that the next `len` bytes of a chunk come to bytes of a place, after the kernels that use it. Kernels behind those
    /// may run meanwhile.
    pub(crate) fn transfer(
        &mut self,
        device: &Device,
        chunk: &mut Chunk,
        len: usize,
        to: PartOfPlace<'_>,
    ) -> Result<(), GpuError> {
        self.come_behind(device, Queue::Transfers, to.place.used_by())?;
        let number = self.turns.next(Queue::Transfers).number;
        let Some(transfers) = &mut self.transfers else {
            unreachable!("a device without the queue copies in that of kernels")
        };
        if to.is_first && to.place.filled_by() == number {
            transfers.barrier();
        }
        let (buffer, offset) = chunk.filled(len, ChunkReads { kernels: 0, transfers: number });
        transfers.copy(At { buffer, offset }, to.at, len as u64);
        let is_full = transfers.is_full();
        to.place.fill_by(number);
        if is_full { self.submit_transfers(device) } else { Ok(()) }
    }

    /// What is recorded from now on comes behind this batch of transfers.
    pub(crate) fn use_what_came(&mut self, device: &Device, batch: u64) -> Result<(), GpuError> {
        self.come_behind(device, Queue::Kernels, batch)
    }

    /// What is gathered from now on for a queue comes behind a batch of the other one.
    fn come_behind(&mut self, device: &Device, queue: Queue, batch: u64) -> Result<(), GpuError> {
        let is_empty = match queue {
            Queue::Kernels => self.open.is_empty(),
            Queue::Transfers => self.transfers.as_ref().is_none_or(Transfers::is_empty),
        };
        let first = self.turns.before(queue, batch, is_empty);
        let (kernels, transfers) = match queue {
            Queue::Kernels => (first.own, first.other),
            Queue::Transfers => (first.other, first.own),
        };
        if kernels {
            self.submit(device)?;
        }
        if transfers {
            self.submit_transfers(device)?;
        }
        self.turns.want(queue, batch);
        Ok(())
    }

    /// Hands the open batch of transfers over, and says which one is the last then.
    pub(crate) fn hand_over_transfers(&mut self, device: &Device) -> Result<u64, GpuError> {
        self.submit_transfers(device)?;
        Ok(self.turns.handed(Queue::Transfers))
    }

    fn submit_transfers(&mut self, device: &Device) -> Result<(), GpuError> {
        let Some(transfers) = self.transfers.as_mut().filter(|of| !of.is_empty()) else {
            return Ok(());
        };
        lost_by_now(self.lose_after, &self.turns)?;
        transfers.hand_over(device, self.turns.next(Queue::Transfers), self.timeline)?;
        self.turns.hand_over(Queue::Transfers);
        Ok(())
    }

    /// Batches of kernels that were handed over.
    fn n_handed(&self) -> u64 {
        self.turns.handed(Queue::Kernels)
    }

    /// Takes a chunk back.
    pub(crate) fn give_chunk(&mut self, chunk: Chunk) {
        self.staging.give(chunk);
    }

    /// The batch that the last of what was gathered is in.
    pub(crate) fn last_batch(&self) -> u64 {
        self.n_handed() + u64::from(!self.open.is_empty())
    }

    /// Hands over all that was gathered. The next commands begin with a small batch.
    pub(crate) fn hand_over(&mut self, device: &Device) -> Result<(), GpuError> {
        self.batch = FIRST_BATCH;
        self.submit(device)
    }

    /// Hands over what is in batches up to this one.
    pub(crate) fn hand_over_up_to(&mut self, device: &Device, batch: u64) -> Result<(), GpuError> {
        if self.n_handed() < batch { self.hand_over(device) } else { Ok(()) }
    }

    /// Hands the batch over, without waiting.
    fn submit(&mut self, device: &Device) -> Result<(), GpuError> {
        self.last = None;
        if self.open.is_empty() {
            return Ok(());
        }
        lost_by_now(self.lose_after, &self.turns)?;
        self.open.barrier(vk::PipelineStageFlags2::HOST);
        let runs = self.open.runs() as u64;
        let Handing { number, behind } = self.turns.next(Queue::Kernels);
        let done = self.timeline.done(device)?;
        let (recorded, open) = (&mut self.recorded, &mut self.open);
        let commands = match &self.timer {
            None => recorded.commands(device, open, number, done)?,
            Some(timer) => recorded.timed_commands(device, open, number, done, timer.stamps())?,
        };
        let buffers = [vk::CommandBufferSubmitInfo::default().command_buffer(commands)];
        let signals = [self.timeline.reached(number)];
        let transfers = self.transfers.iter().filter(|_| behind > 0);
        let waits: Vec<_> = transfers.map(|of| of.timeline().reached(behind)).collect();
        let info = vk::SubmitInfo2::default()
            .command_buffer_infos(&buffers)
            .wait_semaphore_infos(&waits)
            .signal_semaphore_infos(&signals);
        // SAFETY: queues are used under the recorder's lock alone; what the commands use lives until they are done:
        // pipelines as long as the device, memory until its slab is destroyed, which waits.
        unsafe { device.raw.queue_submit2(device.queue, &[info], vk::Fence::null()) }
            .map_err(GpuError::of("work"))?;
        self.turns.hand_over(Queue::Kernels);
        self.runs += runs;
        if let Some(timer) = &mut self.timer {
            self.timeline.wait(device, number)?;
            timer.read(device)?;
        }
        Ok(())
    }

    /// The times of kernels since this was last asked; none where the device is not timed.
    pub(crate) fn take_times(&mut self) -> Vec<KernelTime> {
        self.timer.as_mut().map_or_else(Vec::new, Timer::take)
    }

    /// Destroys all Vulkan objects that it has.
    ///
    /// # Safety
    /// The device does nothing any more.
    pub(crate) unsafe fn destroy(&mut self, device: &Device) {
        // SAFETY: promised by the caller; nothing of this is used afterwards.
        unsafe {
            for chunk in self.uploads.drain().chain(self.staging.drain()) {
                chunk.destroy(device);
            }
            if let Some(timer) = &self.timer {
                timer.destroy(device);
            }
            if let Some(transfers) = &mut self.transfers {
                transfers.destroy(device);
            }
            self.recorded.destroy(device);
            self.timeline.destroy(device);
        }
    }
}

/// An error after as many batches as [`DeviceOptions::lose_after`] says.
fn lost_by_now(lose_after: Option<u64>, turns: &Turns) -> Result<(), GpuError> {
    let handed = turns.handed(Queue::Kernels) + turns.handed(Queue::Transfers);
    match lose_after {
        Some(batches) if handed >= batches => Err(GpuError::Lost),
        _ => Ok(()),
    }
}

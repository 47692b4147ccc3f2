//! A GPU in use: its memory, its kernels, its queues.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use ash::vk;
use brigade_ops::{DeviceOptions, Handed, KernelTime};

use crate::commands::dispatch::{Fusion, Work};
use crate::commands::rehearsal::Rehearsal;
use crate::commands::timeline::{Timeline, Watch};
use crate::commands::turns::Queue;
use crate::commands::{Order, Recorder, Timelines};
use crate::error::GpuError;
use crate::lock::lock;
use crate::memory::span::Span;
use crate::memory::staging::{Chunk, ChunkReads};
use crate::memory::{Memory, Purpose, Region};
use crate::pipelines::shader::Shader;
use crate::pipelines::{Pipelines, Wanted};
use crate::vulkan::facts::{GpuFacts, Heaps};
use crate::vulkan::instance::Instance;
use crate::vulkan::logical::Device;
use crate::vulkan::queues::TransferQueue;

/// A GPU: a handle that is cheap to clone. Ops are its methods, spread over the files of `ops` by what they do. They record what is to be
/// done, and return at once.
///
/// Errors stick: after the first, ops do nothing, and [`Gpu::check`] and [`Gpu::finish`] tell it.
#[derive(Clone)]
pub struct Gpu(Arc<Open>);

struct Open {
    facts: GpuFacts,
    /// Whether f16 matrix units may be used: [`DeviceOptions::fast_math`].
    fast_math: bool,
    recorder: Mutex<Recorder>,
    pipelines: Mutex<Pipelines>,
    rehearsal: Rehearsal,
    memory: Mutex<Memory>,
    /// The number of the batch that the last of what was recorded is in.
    recorded: AtomicU64,
    kernels: Progress,
    /// Of the transfer queue, where there is one.
    transfers: Option<Progress>,
    /// Number of times that the host waited.
    waits: AtomicU64,
    failure: OnceLock<GpuError>,
    /// The others are of it.
    device: ManuallyDrop<Device>,
}

/// How far a queue is.
struct Progress {
    timeline: Timeline,
    /// The last batch that is known to be done.
    done: AtomicU64,
}

impl Progress {
    fn of(timeline: Timeline) -> Self {
        Self { timeline, done: AtomicU64::new(0) }
    }
}

impl Gpu {
    /// Facts of each device of this machine, in the order of their indices.
    ///
    /// # Errors
    /// Where there is no Vulkan or no driver: what to install.
    pub fn devices() -> Result<Vec<GpuFacts>, GpuError> {
        let instance = Instance::new()?;
        instance.devices()?.into_iter().map(|device| GpuFacts::of(&instance, device)).collect()
    }

    /// Opens the device with this index.
    ///
    /// # Errors
    /// As [`Gpu::devices`]; and where there is no device of this index, or it lacks a feature, or what options ask for.
    pub fn open(index: usize, options: &DeviceOptions) -> Result<Self, GpuError> {
        Self::open_with(index, options, None)
    }

    /// [`Gpu::open`] with this transfer queue, and not the one that the device's facts name: for tests.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn open_with(
        index: usize,
        options: &DeviceOptions,
        transfers: Option<TransferQueue>,
    ) -> Result<Self, GpuError> {
        let instance = Instance::new()?;
        let devices = instance.devices()?;
        let none = GpuError::NoDevice { index, count: devices.len() };
        let physical = *devices.get(index).ok_or(none)?;
        let mut facts = GpuFacts::of(&instance, physical)?;
        if let Some(why) = facts.refused {
            let (device, driver) = (facts.name.clone(), facts.driver_text());
            return Err(GpuError::BadDriver { device, driver, why });
        }
        if !options.matrix_units {
            facts.matrices.clear();
        }
        if options.fast_math && !facts.has_f16_units() {
            let (device, driver) = (facts.name.clone(), facts.driver_text());
            return Err(GpuError::NoHalfUnits { device, driver });
        }
        facts.transfer_queue = transfers.unwrap_or(facts.transfer_queue);
        let device = Device::open(instance, physical, &facts, options.fast_math)?;
        let timeline = || Timeline::new(&device, options.patience);
        let transfers = device.transfers.as_ref().map(|_| timeline()).transpose()?;
        let timelines = Timelines { kernels: timeline()?, transfers };
        let recorder = Recorder::new(&device, timelines, options)?;
        let folder = options.pipeline_cache.as_deref();
        let pipelines = Pipelines::new(&device, recorder.layout(), facts.limits, folder)?;
        let apart = options.apart || !facts.kind.shares_host_memory();
        let memory = Memory::new(options.memory_limit, facts.limits.allocation, apart);
        report(&facts);
        Ok(Self(Arc::new(Open {
            facts,
            fast_math: options.fast_math,
            recorder: Mutex::new(recorder),
            pipelines: Mutex::new(pipelines),
            rehearsal: Rehearsal::default(),
            memory: Mutex::new(memory),
            recorded: AtomicU64::new(0),
            kernels: Progress::of(timelines.kernels),
            transfers: timelines.transfers.map(Progress::of),
            waits: AtomicU64::new(0),
            failure: OnceLock::new(),
            device: ManuallyDrop::new(device),
        })))
    }

    /// Facts of the device, as it states them.
    pub fn facts(&self) -> &GpuFacts {
        &self.0.facts
    }

    /// Whether products of many rows are computed in f16: [`DeviceOptions::fast_math`].
    pub fn has_fast_math(&self) -> bool {
        self.0.fast_math
    }

    /// Bytes that buffers take, with what is kept for further ones.
    pub fn used_bytes(&self) -> u64 {
        lock(&self.0.memory).used()
    }

    /// Free bytes of its own memory at present; see [`GpuFacts::free_bytes`].
    pub fn free_bytes(&self) -> u64 {
        let Device { instance, physical, .. } = &*self.0.device;
        Heaps::of(instance, *physical).free
    }

    /// Number of times that the host waited so far. Where nothing was recorded it does not wait.
    pub fn waits(&self) -> u64 {
        self.0.waits.load(Ordering::Relaxed)
    }

    /// Counts of the work handed to the device so far.
    pub fn handed(&self) -> Handed {
        lock(&self.0.recorder).handed()
    }

    /// Time of each kernel since the last call, the longest first. Empty without [`DeviceOptions::timed`].
    pub fn kernel_times(&self) -> Vec<KernelTime> {
        self.wait();
        lock(&self.0.recorder).take_times()
    }

    /// Whether all that was recorded was waited for, so that the host reads and writes at once.
    pub fn is_idle(&self) -> bool {
        self.0.kernels.done.load(Ordering::Acquire) >= self.recorded()
    }

    /// The first error that there was.
    ///
    /// # Errors
    /// The first error, if there was one.
    pub fn check(&self) -> Result<(), GpuError> {
        self.0.failure.get().map_or(Ok(()), |failure| Err(failure.clone()))
    }

    /// Waits until all that was recorded is done. The tables that this thread brought with [`Gpu::upload`] are gone then.
    ///
    /// # Errors
    /// The first error that there was, in this or anything before.
    pub fn finish(&self) -> Result<(), GpuError> {
        self.milestone().wait()
    }

    /// Copies a small table, such as positions or page lists, to where ops read it. It is there until this thread's next
    /// [`Milestone`](crate::Milestone) was waited for.
    pub fn upload(&self, bytes: &[u8]) -> Span<'_> {
        let put = |recorder: &mut Recorder| recorder.uploads.put(&self.0.device, bytes);
        Span::new(self.record(put).unwrap_or_default(), bytes.len())
    }

    /// Keeps the compiled kernels for the next run, if there are new ones. This is also done at times, and when the last handle
    /// goes.
    pub fn save_pipelines(&self) {
        lock(&self.0.pipelines).save(&self.0.device);
    }

    /// Whether both are the same open device.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Records a run of a kernel ([`Work::new`]).
    ///
    /// # Panics
    /// If `push` has more than 128 bytes.
    ///
    /// # Safety
    /// Told these constants and this `push`, the kernel reads and writes nothing but what the caller has borrowed for that: the
    /// operands of its op.
    pub(crate) unsafe fn dispatch<P: bytemuck::Pod>(
        &self,
        order: Order,
        shader: &'static Shader,
        constants: &[u32],
        push: &P,
        groups: [u32; 3],
    ) {
        let work = Work::new(shader, constants, push, groups);
        // SAFETY: promised by the caller; nothing is joined.
        unsafe { self.record_work(order, &work, |_| None) };
    }

    /// Records a run of a kernel, which comes after all before, unless `joined` says of the last one how both go together.
    ///
    /// # Safety
    /// As [`Gpu::dispatch`], for `work` and for what `joined` gives; and what it says is true.
    pub(crate) unsafe fn dispatch_joined(
        &self,
        work: &Work,
        joined: impl FnOnce(&Work) -> Option<Fusion>,
    ) {
        // SAFETY: promised by the caller.
        unsafe { self.record_work(Order::After, work, joined) };
    }

    /// # Safety
    /// As [`Gpu::dispatch_joined`].
    unsafe fn record_work(
        &self,
        order: Order,
        work: &Work,
        joined: impl FnOnce(&Work) -> Option<Fusion>,
    ) {
        if self.0.rehearsal.is_mine() {
            return self.0.rehearsal.notes(order, work, joined);
        }
        self.record(|recorder| {
            let device = &self.0.device;
            let pipeline = |work: &Work| lock(&self.0.pipelines).get(device, &work.wanted);
            let order = match recorder.last().and_then(joined) {
                Some(Fusion::Fused(both)) => {
                    recorder.replace_last(pipeline(&both)?, &both);
                    return Ok(());
                }
                Some(Fusion::Concurrent) => Order::Beside,
                None => order,
            };
            recorder.run(device, order, pipeline(work)?, work)
        });
    }

    /// Number of compiled kernels. A kernel counts once for each set of constants.
    pub fn n_kernels(&self) -> usize {
        lock(&self.0.pipelines).len()
    }

    /// The threads that rehearse, with the runs that they noted.
    pub(crate) fn rehearsal(&self) -> &Rehearsal {
        &self.0.rehearsal
    }

    /// The kernels among `of` that are still to be compiled.
    pub(crate) fn not_compiled(&self, of: impl IntoIterator<Item = Wanted>) -> Vec<Wanted> {
        let pipelines = lock(&self.0.pipelines);
        of.into_iter().filter(|wanted| !pipelines.has(wanted)).collect()
    }

    /// Compiles a kernel while others go on.
    pub(crate) fn make_pipeline(&self, wanted: &Wanted) -> Result<(), GpuError> {
        let maker = lock(&self.0.pipelines).maker();
        let made = maker.make(&self.0.device, wanted)?;
        lock(&self.0.pipelines).keep(&self.0.device, wanted, made);
        Ok(())
    }

    /// Takes back what it lent of its ring of chunks, also after it failed.
    pub(crate) fn give_chunk(&self, chunk: Chunk) {
        lock(&self.0.recorder).give_chunk(chunk);
    }

    /// The device as Vulkan knows it.
    pub(crate) fn device(&self) -> &Device {
        &self.0.device
    }

    /// Records that bytes of a slab become zero.
    pub(crate) fn record_zeros(&self, buffer: vk::Buffer, range: std::ops::Range<u64>) {
        if !range.is_empty() {
            self.record(|recorder| {
                recorder.zeros(buffer, range);
                Ok(())
            });
        }
    }

    /// Waits until all that was recorded is done, or the device failed.
    pub(crate) fn wait(&self) {
        if !self.is_idle() {
            let batch = self.hand_over(false);
            self.wait_for(batch);
        }
    }

    /// The number of the batch that the last of what was recorded is in.
    pub(crate) fn recorded(&self) -> u64 {
        self.0.recorded.load(Ordering::Acquire)
    }

    /// Hands over all that was recorded, and says in which batch the last of it is. `with_tables`: those of this thread are free once
    /// that is done.
    pub(crate) fn hand_over(&self, with_tables: bool) -> u64 {
        let mut recorder = lock(&self.0.recorder);
        if self.0.failure.get().is_none()
            && let Err(error) = recorder.hand_over(&self.0.device)
        {
            self.fail(error);
        }
        let batch = self.recorded();
        if with_tables {
            recorder.uploads.hand_over(batch);
        }
        batch
    }

    /// Hands over what is in batches up to this one, as far as it is not.
    pub(crate) fn hand_over_up_to(&self, batch: u64) {
        if self.0.kernels.done.load(Ordering::Acquire) < batch {
            let mut recorder = lock(&self.0.recorder);
            if self.0.failure.get().is_none()
                && let Err(error) = recorder.hand_over_up_to(&self.0.device, batch)
            {
                self.fail(error);
            }
        }
    }

    /// Waits until a batch that was handed over is done, or the device failed. Others may record meanwhile.
    pub(crate) fn wait_for(&self, batch: u64) {
        self.wait_for_batch(Queue::Kernels, batch);
    }

    /// The same of either queue.
    pub(crate) fn wait_for_batch(&self, of: Queue, batch: u64) {
        let Some(Progress { timeline, done }) = self.progress(of) else { return };
        if done.load(Ordering::Acquire) >= batch || self.0.failure.get().is_some() {
            return;
        }
        self.0.waits.fetch_add(1, Ordering::Relaxed);
        match timeline.wait(&self.0.device, batch) {
            Ok(()) => drop(done.fetch_max(batch, Ordering::AcqRel)),
            Err(error) => self.fail(error),
        }
    }

    /// Waits until the device has read a chunk, or failed.
    pub(crate) fn wait_for_reads(&self, reads: ChunkReads) {
        let kernels = self.0.kernels.timeline.wait(&self.0.device, reads.kernels);
        let transfers = |of: &Progress| of.timeline.wait(&self.0.device, reads.transfers);
        let both = kernels.and_then(|()| self.0.transfers.as_ref().map_or(Ok(()), transfers));
        if let Err(error) = both {
            self.fail(error);
        }
    }

    fn progress(&self, of: Queue) -> Option<&Progress> {
        match of {
            Queue::Kernels => Some(&self.0.kernels),
            Queue::Transfers => self.0.transfers.as_ref(),
        }
    }

    /// Whether places are filled by a queue beside that of kernels, so that these go on meanwhile.
    pub fn has_transfers(&self) -> bool {
        self.0.transfers.is_some()
    }

    /// Hands over all transfers that were recorded, and says in which batch the last one is.
    pub(crate) fn hand_over_transfers(&self) -> u64 {
        if !self.has_transfers() {
            return 0;
        }
        self.record(|recorder| recorder.hand_over_transfers(&self.0.device)).unwrap_or(0)
    }

    /// Waits for so long at most; whether a batch that was handed over is done, or the device failed. `watch` is kept between calls.
    pub(crate) fn is_done_within(
        &self,
        of: Queue,
        batch: u64,
        within: Duration,
        watch: &mut Option<Watch>,
    ) -> bool {
        let Some(Progress { timeline, done }) = self.progress(of) else { return true };
        if done.load(Ordering::Acquire) >= batch || self.0.failure.get().is_some() {
            return true;
        }
        let device = &*self.0.device;
        let mut look = || {
            let mut seen = watch.take().map_or_else(|| timeline.watch(device), Ok)?;
            let is_done = timeline.wait_within(device, batch, within, &mut seen)?;
            *watch = Some(seen);
            Ok(is_done)
        };
        match look() {
            Ok(true) => {
                // The host waited for it, in however many steps.
                self.0.waits.fetch_add(1, Ordering::Relaxed);
                done.fetch_max(batch, Ordering::AcqRel);
                true
            }
            Ok(false) => false,
            Err(error) => {
                self.fail(error);
                true
            }
        }
    }

    /// Tables of what is done are free again; at times the compiled kernels are kept for the next run.
    pub(crate) fn free_tables(&self) {
        if self.check().is_ok() {
            lock(&self.0.recorder).uploads.free(self.0.kernels.done.load(Ordering::Acquire));
        }
        lock(&self.0.pipelines).save_at_times(&self.0.device);
    }

    /// Memory from a slab.
    pub(crate) fn take_region(&self, len: u64, purpose: Purpose) -> Result<Region, GpuError> {
        self.check()?;
        let device = &self.0.device;
        let refused = match lock(&self.0.memory).take(device, len, purpose) {
            Ok(region) => return Ok(region),
            Err(error) => error,
        };
        // What other purposes keep may make room.
        let idle = lock(&self.0.memory).drain_idle();
        if idle.is_empty() {
            return Err(refused);
        }
        idle.into_iter().for_each(|slab| self.destroy(slab));
        lock(&self.0.memory).take(device, len, purpose)
    }

    /// Returns memory to the pool.
    pub(crate) fn give_region(&self, region: &Region) {
        let slab = lock(&self.0.memory).give(region);
        if let Some(slab) = slab {
            self.destroy(slab);
        }
    }

    /// Frees a slab that no buffer is in.
    fn destroy(&self, slab: crate::memory::slab::Slab) {
        self.wait();
        self.wait_for_batch(Queue::Transfers, self.hand_over_transfers());
        // A device that failed may still write: its memory stays until it is closed.
        if self.check().is_err() {
            return lock(&self.0.memory).keep_lost(slab);
        }
        // SAFETY: it was taken out of the memory with no buffer in it, and no command is pending.
        unsafe { slab.destroy(&self.0.device) };
    }

    /// Runs `task` on the recorder, unless the device failed; an error of it sticks.
    pub(crate) fn record<T>(
        &self,
        task: impl FnOnce(&mut Recorder) -> Result<T, GpuError>,
    ) -> Option<T> {
        let mut recorder = lock(&self.0.recorder);
        if self.0.failure.get().is_some() {
            return None;
        }
        let result = task(&mut recorder);
        self.0.recorded.store(recorder.last_batch(), Ordering::Release);
        result.inspect_err(|error| self.fail(error.clone())).ok()
    }

    fn fail(&self, error: GpuError) {
        tracing::error!(%error, device = self.0.facts.name, "the GPU failed");
        // The first error is the one that tells something.
        let _ = self.0.failure.set(error);
    }
}

/// Bytes of a card's memory that the host should see: what the rows of a ubatch take.
const WINDOW: u64 = 224 << 20;

/// Says in the log what was opened, and what could be better.
fn report(facts: &GpuFacts) {
    let device = &facts.name;
    tracing::info!(
        device,
        driver = facts.driver_text(),
        bytes = facts.device_bytes,
        free = facts.free_bytes,
        transfers = %facts.transfer_queue,
        visible = facts.visible_bytes,
        "GPU"
    );
    if let Some(why) = facts.no_units {
        tracing::warn!(device, "the GPU's matrix units are left alone: {why}");
    }
    if facts.visible_bytes < WINDOW && !facts.kind.shares_host_memory() {
        tracing::warn!(
            device,
            "the host sees only {} bytes of the GPU's memory, and rows of large ubatches will lie outside it, slowly: \
             switch on Resizable BAR (Above 4G Decoding) in the machine's firmware",
            facts.visible_bytes,
        );
    }
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("facts", &self.0.facts).finish_non_exhaustive()
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // Who hangs cannot be waited for, and is left to the driver.
        if matches!(self.failure.get(), Some(GpuError::TimedOut { .. })) {
            return;
        }
        let device = &*self.device;
        let pipelines = self.pipelines.get_mut().unwrap_or_else(PoisonError::into_inner);
        pipelines.save(device);
        // SAFETY: nobody else uses the queue: this is the last handle. Once it is idle, or lost, nothing is used any more.
        unsafe {
            let _ = device.raw.device_wait_idle();
            pipelines.destroy(device);
            let memory = self.memory.get_mut().unwrap_or_else(PoisonError::into_inner);
            memory.drain().for_each(|slab| slab.destroy(device));
            self.recorder.get_mut().unwrap_or_else(PoisonError::into_inner).destroy(device);
            ManuallyDrop::drop(&mut self.device);
        }
    }
}

/// Workgroups in a grid of at least `n` that every device takes; `line()` of the shader counts them through.
///
/// # Panics
/// If there are more than 2^30.
pub(crate) fn lines(n: usize) -> [u32; 3] {
    const WIDTH: usize = 32768;
    assert!(n <= WIDTH * WIDTH, "{n} workgroups");
    let x = n.clamp(1, WIDTH);
    [x as u32, n.div_ceil(x) as u32, 1]
}

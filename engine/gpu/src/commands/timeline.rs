//! Progress of a device: a semaphore that counts the batches that are done.

use std::time::{Duration, Instant};

use ash::vk;

use crate::error::GpuError;
use crate::vulkan::logical::Device;

/// Steps of waiting after which it is looked whether the device comes on.
const STEP: Duration = Duration::from_secs(1);

/// Counts the batches that are done. A handle: copies count the same.
#[derive(Clone, Copy)]
pub(crate) struct Timeline {
    semaphore: vk::Semaphore,
    /// Longest time for which the device may go without ending a batch.
    patience: Duration,
}

/// Last progress seen of a device by a thread that waits for it.
pub(crate) struct Watch {
    done: u64,
    since: Instant,
}

impl Timeline {
    pub(crate) fn new(device: &Device, patience: Duration) -> Result<Self, GpuError> {
        let mut timeline =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut timeline);
        // SAFETY: the device is open and the info is complete.
        let semaphore = unsafe { device.raw.create_semaphore(&info, None) }
            .map_err(GpuError::of("a queue's parts"))?;
        Ok(Self { semaphore, patience })
    }

    /// The point at which this batch is done, for the device to signal or to wait for.
    pub(crate) fn reached(&self, batch: u64) -> vk::SemaphoreSubmitInfo<'static> {
        vk::SemaphoreSubmitInfo::default()
            .semaphore(self.semaphore)
            .value(batch)
            .stage_mask(vk::PipelineStageFlags2::ALL_COMMANDS)
    }

    /// Batches that are done.
    pub(crate) fn done(&self, device: &Device) -> Result<u64, GpuError> {
        // SAFETY: the semaphore is of this device.
        unsafe { device.raw.get_semaphore_counter_value(self.semaphore) }
            .map_err(GpuError::of("to look at its work"))
    }

    /// Begins to watch the device.
    pub(crate) fn watch(&self, device: &Device) -> Result<Watch, GpuError> {
        Ok(Watch { done: self.done(device)?, since: Instant::now() })
    }

    /// Waits until a batch that was handed over is done.
    pub(crate) fn wait(&self, device: &Device, batch: u64) -> Result<(), GpuError> {
        let mut watch = self.watch(device)?;
        while !self.wait_within(device, batch, STEP.min(self.patience), &mut watch)? {}
        Ok(())
    }

    /// Waits for so long at most; whether the batch, which was handed over, is done.
    ///
    /// # Errors
    /// [`GpuError::TimedOut`] where the device ended no batch for longer than it may, since it was first watched.
    pub(crate) fn wait_within(
        &self,
        device: &Device,
        batch: u64,
        within: Duration,
        watch: &mut Watch,
    ) -> Result<bool, GpuError> {
        let (semaphores, values) = ([self.semaphore], [batch]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        let nanoseconds = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        // SAFETY: the semaphore is of this device.
        match unsafe { device.raw.wait_semaphores(&info, nanoseconds) } {
            Ok(()) => return Ok(true),
            Err(vk::Result::TIMEOUT) => {}
            Err(error) => return Err(GpuError::of("to wait")(error)),
        }
        let done = self.done(device)?;
        if done > watch.done {
            *watch = Watch { done, since: Instant::now() };
        } else if watch.since.elapsed() >= self.patience {
            return Err(GpuError::TimedOut { seconds: self.patience.as_secs() });
        }
        Ok(false)
    }

    /// Gives the semaphore back.
    ///
    /// # Safety
    /// The device does nothing any more, and no copy of this is used again.
    pub(crate) unsafe fn destroy(&self, device: &Device) {
        // SAFETY: promised by the caller.
        unsafe { device.raw.destroy_semaphore(self.semaphore, None) };
    }
}

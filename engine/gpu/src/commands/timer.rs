//! Times of kernels: the device notes the time behind each run, if measurements were asked for.

use std::collections::HashMap;
use std::time::Duration;

use ash::vk;
use brigade_ops::KernelTime;

use super::dispatch::Work;
use crate::error::GpuError;
use crate::pipelines::Wanted;
use crate::vulkan::logical::Device;

/// A run, by what tells it from others.
type Key = (Wanted, [u32; 3]);

/// Times runs, batch by batch.
pub(crate) struct Timer {
    stamps: vk::QueryPool,
    /// Nanoseconds of a tick, and the bits of a stamp that count.
    tick: f64,
    mask: u64,
    /// The runs of the batch that is gathered, or that was handed over last.
    open: Vec<Key>,
    /// Runs of each kernel, and their ticks.
    times: HashMap<Key, (u32, u64)>,
}

impl Timer {
    /// Times batches of up to `most` runs.
    ///
    /// # Errors
    /// The device's queue has no clock.
    pub(crate) fn new(device: &Device, most: usize) -> Result<Self, GpuError> {
        let (instance, physical) = (&device.instance.raw, device.physical);
        // SAFETY: the device is one of this instance.
        let (properties, families) = unsafe {
            (
                instance.get_physical_device_properties(physical),
                instance.get_physical_device_queue_family_properties(physical),
            )
        };
        let bits = families[device.family as usize].timestamp_valid_bits;
        if bits == 0 {
            let name = properties.device_name_as_c_str().unwrap_or_default();
            let device = name.to_string_lossy().into_owned();
            return Err(GpuError::Missing { device, missing: vec!["time stamps"] });
        }
        let info = vk::QueryPoolCreateInfo::default()
            .query_type(vk::QueryType::TIMESTAMP)
            .query_count(most as u32 + 1);
        // SAFETY: the device is open and the info is complete.
        let stamps = unsafe { device.raw.create_query_pool(&info, None) }
            .map_err(GpuError::of("time stamps"))?;
        Ok(Self {
            stamps,
            tick: f64::from(properties.limits.timestamp_period),
            mask: u64::MAX >> (64 - bits.min(64)),
            open: Vec::new(),
            times: HashMap::new(),
        })
    }

    /// Queries that a batch writes its stamps to: one at its start and one behind each run.
    pub(crate) fn stamps(&self) -> vk::QueryPool {
        self.stamps
    }

    /// A run was added to the batch.
    pub(crate) fn run(&mut self, work: &Work) {
        self.open.push((work.wanted, work.groups));
    }

    /// A run came in the place of the last one.
    pub(crate) fn replace_run(&mut self, work: &Work) {
        self.open.pop();
        self.run(work);
    }

    /// Adds the times of the batch, which is done.
    pub(crate) fn read(&mut self, device: &Device) -> Result<(), GpuError> {
        let mut stamps = vec![0u64; self.open.len() + 1];
        let flags = vk::QueryResultFlags::TYPE_64 | vk::QueryResultFlags::WAIT;
        // SAFETY: the pool is of this device, and the batch wrote so many stamps.
        unsafe { device.raw.get_query_pool_results(self.stamps, 0, &mut stamps, flags) }
            .map_err(GpuError::of("time stamps"))?;
        for (key, pair) in self.open.drain(..).zip(stamps.windows(2)) {
            let (runs, ticks) = self.times.entry(key).or_default();
            *runs += 1;
            *ticks += pair[1].wrapping_sub(pair[0]) & self.mask;
        }
        Ok(())
    }

    /// The times so far, the longest first; it begins anew.
    pub(crate) fn take(&mut self) -> Vec<KernelTime> {
        let time = |((wanted, groups), (runs, ticks)): (Key, (u32, u64))| {
            let (name, constants) = wanted.key();
            let took = Duration::from_nanos((ticks as f64 * self.tick) as u64);
            KernelTime { name, constants: constants.to_vec(), groups, runs, took }
        };
        let mut times: Vec<_> = self.times.drain().map(time).collect();
        times.sort_by_key(|time| std::cmp::Reverse(time.took));
        times
    }

    /// Gives the stamps back.
    ///
    /// # Safety
    /// The device does nothing any more, and this is not used again.
    pub(crate) unsafe fn destroy(&self, device: &Device) {
        // SAFETY: promised by the caller.
        unsafe { device.raw.destroy_query_pool(self.stamps, None) };
    }
}

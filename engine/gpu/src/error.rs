//! Errors of a GPU, in words for operators.

use ash::vk;

/// Reasons why a device, its memory or its work is not available.
#[derive(Clone, Debug, thiserror::Error)]
pub enum GpuError {
    /// The machine has no Vulkan loader.
    #[error(
        "no Vulkan on this machine ({0}): install the GPU's driver and the Vulkan loader \
         (package libvulkan1 on Debian and Ubuntu, vulkan-loader on Fedora, vulkan-icd-loader on Arch)"
    )]
    NoLoader(String),
    /// There is a loader, and no driver that it can use.
    #[error(
        "Vulkan finds no driver ({0}): install the GPU's driver with its Vulkan part \
         (mesa-vulkan-drivers for AMD and Intel, the vendor's for NVIDIA)"
    )]
    NoDriver(vk::Result),
    /// The index is beyond the devices that there are.
    #[error("there is no GPU {index}: Vulkan finds {count}, counted from 0")]
    NoDevice {
        /// Index that was asked for.
        index: usize,
        /// Number of devices.
        count: usize,
    },
    /// The device or its driver lacks what the kernels need.
    #[error("GPU {device} lacks {}: a newer driver may have it", missing.join(", "))]
    Missing {
        /// Name of the device.
        device: String,
        /// Names of features, as Vulkan has them.
        missing: Vec<&'static str>,
    },
    /// The driver has a known fault, so that the device is not used.
    #[error("GPU {device} is not used with its driver {driver}: {why}, or use --device cpu")]
    BadDriver {
        /// Name of the device.
        device: String,
        /// Name and version of the driver.
        driver: String,
        /// The fault.
        why: &'static str,
    },
    /// Fast math was asked for, and the device has not what it needs.
    #[error(
        "GPU {device} with driver {driver} has no f16 matrix units for --fast-math (`brigade devices` says which GPU has some): start \
         without --fast-math"
    )]
    NoHalfUnits {
        /// Name of the device.
        device: String,
        /// Name and version of the driver.
        driver: String,
    },
    /// The device or the limit has no room for a buffer.
    #[error(
        "no room for {wanted} bytes on the GPU, {used} are in use{}: \
         give it fewer layers or a smaller context",
        limit.map_or(String::new(), |limit| format!(" of the {limit} allowed"))
    )]
    OutOfMemory {
        /// Bytes of the buffer.
        wanted: u64,
        /// Bytes in use before.
        used: u64,
        /// The limit of [`DeviceOptions`](crate::DeviceOptions).
        limit: Option<u64>,
    },
    /// The driver gave up on the device.
    #[error(
        "the GPU was lost: its driver reset it or it was unplugged. The worker opens it again for the next stage; if it happens \
         often, see the system's log for the driver's reason, or try --no-coopmat"
    )]
    Lost,
    /// Work did not come to an end.
    #[error(
        "the GPU did not finish its work in {seconds} s: it hangs, or it is far too slow for this model. Restart the worker"
    )]
    TimedOut {
        /// Seconds of waiting without any progress.
        seconds: u64,
    },
    /// Another refusal of the driver.
    #[error("the GPU's driver refuses {doing}: {result}")]
    Vulkan {
        /// Action that was asked of the driver.
        doing: &'static str,
        /// Answer of the driver.
        result: vk::Result,
    },
}

impl GpuError {
    /// For `map_err`: what the driver answered to `doing`.
    pub(crate) fn of(doing: &'static str) -> impl Fn(vk::Result) -> Self {
        move |result| match result {
            vk::Result::ERROR_DEVICE_LOST => Self::Lost,
            _ => Self::Vulkan { doing, result },
        }
    }
}

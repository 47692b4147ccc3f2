//! A device opened for work: its features switched on, and its queues.

use ash::{khr, vk};

use super::facts::GpuFacts;
use super::instance::Instance;
use super::queues::{TransferQueue, compute_family, families, transfer_queue};
use crate::error::GpuError;

/// An open device. Everything that is created on it is destroyed before it.
pub(crate) struct Device {
    pub(crate) raw: ash::Device,
    pub(crate) queue: vk::Queue,
    pub(crate) family: u32,
    /// The queue for transfers beside kernels, where it is used.
    pub(crate) transfers: Option<OpenQueue>,
    pub(crate) physical: vk::PhysicalDevice,
    pub(crate) instance: Instance,
}

/// A queue of an open device.
pub(crate) struct OpenQueue {
    pub(crate) queue: vk::Queue,
    pub(crate) family: u32,
}

impl Device {
    /// Opens a device of `instance`, with f16 in kernels for `fast_math`, and with the transfer queue that its facts
    /// name.
    pub(crate) fn open(
        instance: Instance,
        physical: vk::PhysicalDevice,
        facts: &GpuFacts,
        fast_math: bool,
    ) -> Result<Self, GpuError> {
        let mut missing = missing(&instance, physical);
        let families = families(&instance, physical);
        let family = compute_family(&families);
        if family.is_none() {
            missing.push("a compute queue");
        }
        let (Some(family), true) = (family, missing.is_empty()) else {
            return Err(GpuError::Missing { device: facts.name.clone(), missing });
        };
        let units = !facts.matrices.is_empty();
        let mut wanted = Wanted::new(units, facts.float64, fast_math);
        let beside = match facts.transfer_queue {
            TransferQueue::CopyEngine | TransferQueue::Second => transfer_queue(&families, family),
            TransferQueue::Kernels | TransferQueue::Shared => None,
        };
        let beside = beside.map(|(_, at)| at);
        let priorities = [1.0; 2];
        let info = |family: u32, n: usize| {
            let info = vk::DeviceQueueCreateInfo::default().queue_family_index(family);
            info.queue_priorities(&priorities[..n])
        };
        let queues = match beside {
            Some(at) if at.family != family => vec![info(family, 1), info(at.family, 1)],
            Some(_) => vec![info(family, 2)],
            None => vec![info(family, 1)],
        };
        let mut extensions = Vec::new();
        if units {
            extensions.push(khr::cooperative_matrix::NAME.as_ptr());
        }
        // A device that stands for another interface must be opened with this.
        if instance.device_has(physical, khr::portability_subset::NAME) {
            extensions.push(khr::portability_subset::NAME.as_ptr());
        }
        let mut info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions)
            .push_next(&mut wanted.base)
            .push_next(&mut wanted.v11)
            .push_next(&mut wanted.v12)
            .push_next(&mut wanted.v13);
        if units {
            info = info.push_next(&mut wanted.matrices);
        }
        // SAFETY: the device is one of this instance, what is wanted it has, and `info` with all it points to lives
        // during the call.
        let raw = unsafe { instance.raw.create_device(physical, &info, None) }
            .map_err(GpuError::of("the device"))?;
        // SAFETY: the device was created with these queues.
        let queue_at = |family, index| unsafe { raw.get_device_queue(family, index) };
        let queue = queue_at(family, 0);
        let transfers = match (beside, facts.transfer_queue) {
            (Some(at), _) => {
                Some(OpenQueue { queue: queue_at(at.family, at.index), family: at.family })
            }
            (None, TransferQueue::Shared) => Some(OpenQueue { queue, family }),
            (None, _) => None,
        };
        Ok(Self { raw, queue, family, transfers, physical, instance })
    }

    /// The two families whose queues use the same memory; `None` where one family does.
    pub(crate) fn two_families(&self) -> Option<[u32; 2]> {
        let other = self.transfers.as_ref()?.family;
        (other != self.family).then_some([self.family, other])
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: what was created on the device is gone: its owners hold this one.
        unsafe { self.raw.destroy_device(None) };
    }
}

/// The features that are switched on.
struct Wanted {
    base: vk::PhysicalDeviceFeatures2<'static>,
    v11: vk::PhysicalDeviceVulkan11Features<'static>,
    v12: vk::PhysicalDeviceVulkan12Features<'static>,
    v13: vk::PhysicalDeviceVulkan13Features<'static>,
    matrices: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR<'static>,
}

impl Wanted {
    fn new(units: bool, float64: bool, float16: bool) -> Self {
        let base = vk::PhysicalDeviceFeatures::default()
            .shader_int16(true)
            .shader_int64(true)
            .shader_float64(float64);
        Self {
            base: vk::PhysicalDeviceFeatures2::default().features(base),
            v11: vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(true),
            v12: vk::PhysicalDeviceVulkan12Features::default()
                .buffer_device_address(true)
                .storage_buffer8_bit_access(true)
                .shader_int8(true)
                .shader_float16(float16)
                .scalar_block_layout(true)
                .timeline_semaphore(true)
                .vulkan_memory_model(units)
                .vulkan_memory_model_device_scope(units),
            v13: vk::PhysicalDeviceVulkan13Features::default()
                .synchronization2(true)
                .maintenance4(true)
                .shader_integer_dot_product(true)
                .subgroup_size_control(true)
                .compute_full_subgroups(true),
            matrices: vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default()
                .cooperative_matrix(units),
        }
    }
}

/// Names of what a device lacks.
fn missing(instance: &Instance, physical: vk::PhysicalDevice) -> Vec<&'static str> {
    // SAFETY: the device is one of this instance.
    let properties = unsafe { instance.raw.get_physical_device_properties(physical) };
    if properties.api_version < vk::API_VERSION_1_3 {
        return vec!["Vulkan 1.3"];
    }
    let mut v11 = vk::PhysicalDeviceVulkan11Features::default();
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut v13 = vk::PhysicalDeviceVulkan13Features::default();
    let mut all = vk::PhysicalDeviceFeatures2::default()
        .push_next(&mut v11)
        .push_next(&mut v12)
        .push_next(&mut v13);
    // SAFETY: as above, and the chained structures are of its version.
    unsafe { instance.raw.get_physical_device_features2(physical, &mut all) };
    let base = all.features;
    let limits = &properties.limits;
    let large = limits.max_compute_work_group_invocations >= 256
        && limits.max_compute_work_group_size[0] >= 256;
    let features = [
        (vk::Bool32::from(large), "workgroups of 256"),
        (
            vk::Bool32::from(limits.max_compute_shared_memory_size >= 32 << 10),
            "32 KiB of shared memory",
        ),
        (base.shader_int16, "shaderInt16"),
        (base.shader_int64, "shaderInt64"),
        (v11.storage_buffer16_bit_access, "storageBuffer16BitAccess"),
        (v12.buffer_device_address, "bufferDeviceAddress"),
        (v12.storage_buffer8_bit_access, "storageBuffer8BitAccess"),
        (v12.shader_int8, "shaderInt8"),
        (v12.scalar_block_layout, "scalarBlockLayout"),
        (v12.timeline_semaphore, "timelineSemaphore"),
        (v13.synchronization2, "synchronization2"),
        (v13.maintenance4, "maintenance4"),
        (v13.shader_integer_dot_product, "shaderIntegerDotProduct"),
        (v13.subgroup_size_control, "subgroupSizeControl"),
        (v13.compute_full_subgroups, "computeFullSubgroups"),
    ];
    features.into_iter().filter(|(has, _)| *has == vk::FALSE).map(|(_, name)| name).collect()
}

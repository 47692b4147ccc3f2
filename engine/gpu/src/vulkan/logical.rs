//! A device opened for work: its features switched on, and its queue.

use ash::{khr, vk};

use super::facts::GpuFacts;
use super::instance::Instance;
use crate::error::GpuError;

/// An open device. Everything that is created on it is destroyed before it.
pub(crate) struct Device {
    pub(crate) raw: ash::Device,
    pub(crate) queue: vk::Queue,
    pub(crate) family: u32,
    pub(crate) physical: vk::PhysicalDevice,
    pub(crate) instance: Instance,
}

impl Device {
    /// Opens a device of `instance`, with f16 in kernels for `fast_math`.
    pub(crate) fn open(
        instance: Instance,
        physical: vk::PhysicalDevice,
        facts: &GpuFacts,
        fast_math: bool,
    ) -> Result<Self, GpuError> {
        let mut missing = missing(&instance, physical);
        let family = compute_family(&instance, physical);
        if family.is_none() {
            missing.push("a compute queue");
        }
        let (Some(family), true) = (family, missing.is_empty()) else {
            return Err(GpuError::Missing { device: facts.name.clone(), missing });
        };
        let units = !facts.matrices.is_empty();
        let mut wanted = Wanted::new(units, facts.float64, fast_math);
        let queues = [vk::DeviceQueueCreateInfo::default()
            .queue_family_index(family)
            .queue_priorities(&[1.0])];
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
        // SAFETY: the device was created with one queue of this family.
        let queue = unsafe { raw.get_device_queue(family, 0) };
        Ok(Self { raw, queue, family, physical, instance })
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

/// The first family of queues that computes.
fn compute_family(instance: &Instance, physical: vk::PhysicalDevice) -> Option<u32> {
    // SAFETY: the device is one of this instance.
    let families = unsafe { instance.raw.get_physical_device_queue_family_properties(physical) };
    let computes = |f: &vk::QueueFamilyProperties| f.queue_flags.contains(vk::QueueFlags::COMPUTE);
    families.iter().position(computes).and_then(|at| u32::try_from(at).ok())
}

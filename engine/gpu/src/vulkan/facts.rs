//! Facts of a device, as it states them.

use std::ffi::CStr;

use ash::{ext, khr, vk};
use brigade_ops::DeviceClass;

use super::drivers::{Verdict, verdict};
use super::instance::Instance;
use super::queues::{TransferQueue, compute_family, families, transfer_queue};
use crate::error::GpuError;

/// Names, memory and features of a device.
#[derive(Clone, Debug)]
pub struct GpuFacts {
    /// Name of the device.
    pub name: String,
    /// Name of the driver.
    pub driver: String,
    /// The driver's version, in its own words.
    pub driver_version: String,
    /// The Vulkan version, as `1.3.230`.
    pub api_version: String,
    /// The class of the device.
    pub kind: DeviceClass,
    /// Bytes of its own memory.
    pub device_bytes: u64,
    /// Bytes of its own memory that the host can write: all of it, or a small window.
    pub visible_bytes: u64,
    /// Free bytes of its own memory at present; all of them where the driver does not say.
    pub free_bytes: u64,
    /// Invocations that run together.
    pub subgroup_size: u32,
    /// Whether dot products of four bytes have an instruction.
    pub integer_dot: bool,
    /// Whether kernels keep subnormal numbers; otherwise the driver may flush them.
    pub keeps_subnormals: bool,
    /// Whether kernels can compute in f64.
    pub float64: bool,
    /// The shapes that matrix units multiply (`VK_KHR_cooperative_matrix`), over subgroups; none without units.
    pub matrices: Vec<MatrixShape>,
    /// The queue by which experts of the host's memory come to it, where it has a memory of its own.
    pub transfer_queue: TransferQueue,
    /// Reason why its matrix units are left alone, where that is a fault of the driver.
    pub no_units: Option<&'static str>,
    /// Reason why it is not used at all: a known fault of its driver.
    pub refused: Option<&'static str>,
    pub(crate) limits: Limits,
}

/// One product of matrix units: `[m, k]` times `[k, n]`, added to `[m, n]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixShape {
    /// Rows of the result.
    pub m: u32,
    /// Columns of the result.
    pub n: u32,
    /// Length of the sums.
    pub k: u32,
    /// Type of both factors.
    pub factors: MatrixType,
    /// Type of the sums.
    pub sums: MatrixType,
}

/// Type of a matrix unit's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixType {
    /// 16-bit floats (half precision).
    F16,
    /// 32-bit floats (single precision).
    F32,
    /// Signed 8-bit integers.
    I8,
    /// Unsigned 8-bit integers.
    U8,
    /// Signed 32-bit integers.
    I32,
    /// Any other type.
    Other,
}

/// Limits that the runtime checks before it creates something.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    /// Most bytes of one allocation.
    pub(crate) allocation: u64,
    /// Most invocations that run together.
    pub(crate) subgroup: u32,
    /// Ways of rounding and of subnormals that kernels can be told to keep.
    pub(crate) controls: FloatControls,
    /// Identity of device and driver, which compiled kernels depend on.
    pub(crate) identity: Identity,
}

/// Modes of arithmetic that can be asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FloatControls {
    pub(crate) keep_subnormals: bool,
    pub(crate) keep_signs_and_infinities: bool,
    pub(crate) round_to_even: bool,
}

/// Identity of device and driver, which compiled kernels depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) vendor: u32,
    pub(crate) device: u32,
    pub(crate) device_uuid: [u8; 16],
    pub(crate) driver_uuid: [u8; 16],
    pub(crate) cache_uuid: [u8; 16],
}

impl GpuFacts {
    /// Whether matrix units multiply signed bytes.
    pub fn has_int8_units(&self) -> bool {
        self.matrices.iter().any(|shape| shape.factors == MatrixType::I8)
    }

    /// Whether matrix units multiply f16 with sums in f32, in a shape that `--fast-math` has a kernel for.
    pub fn has_f16_units(&self) -> bool {
        self.f16_units().is_some()
    }

    /// The largest shape in which matrix units multiply f16 with sums in f32 and that tiles of sixteen rows have whole.
    pub(crate) fn f16_units(&self) -> Option<MatrixShape> {
        let fits = |shape: &&MatrixShape| {
            let MatrixShape { m, n, k, factors, sums } = **shape;
            let types = factors == MatrixType::F16 && sums == MatrixType::F32;
            types && [8, 16].contains(&m) && [8, 16].contains(&n) && [8, 16, 32].contains(&k)
        };
        let shapes = self.matrices.iter().filter(fits);
        shapes.max_by_key(|shape| shape.m * shape.n * shape.k).copied()
    }

    /// Identity of the f16 matrix units, on which their bits depend: maker, device, driver and shape. Two devices of
    /// the same identity compute the same bits with `--fast-math`.
    pub fn f16_identity(&self) -> String {
        let Identity { vendor, device, driver_uuid, .. } = self.limits.identity;
        let (driver, shape) = (self.driver_text(), self.f16_units());
        format!("{vendor:x}:{device:x} {driver} {driver_uuid:x?} {shape:?}")
    }

    /// Name and version of its driver.
    pub fn driver_text(&self) -> String {
        format!("{} {}", self.driver, self.driver_version)
    }

    /// What a card of this class would say that has these shapes of matrix units, and subgroups of 32.
    #[cfg(test)]
    pub(crate) fn of_card(kind: DeviceClass, matrices: &[MatrixShape]) -> Self {
        Self {
            name: "card".to_owned(),
            driver: "driver".to_owned(),
            driver_version: "1".to_owned(),
            api_version: "1.3.0".to_owned(),
            kind,
            device_bytes: 1 << 33,
            visible_bytes: 1 << 28,
            free_bytes: 1 << 33,
            subgroup_size: 32,
            integer_dot: true,
            keeps_subnormals: true,
            float64: true,
            matrices: matrices.to_vec(),
            transfer_queue: TransferQueue::Kernels,
            no_units: None,
            refused: None,
            limits: Limits { allocation: 1 << 32, subgroup: 32, ..Limits::default() },
        }
    }

    /// Asks a device for its facts.
    pub(crate) fn of(instance: &Instance, device: vk::PhysicalDevice) -> Result<Self, GpuError> {
        let mut driver = vk::PhysicalDeviceVulkan12Properties::default();
        let mut sizes = vk::PhysicalDeviceVulkan13Properties::default();
        let mut ids = vk::PhysicalDeviceVulkan11Properties::default();
        let mut all = vk::PhysicalDeviceProperties2::default();
        // SAFETY: the device is one of this instance.
        let version = unsafe { instance.raw.get_physical_device_properties(device) }.api_version;
        // Older devices do not know these structures.
        if version >= vk::API_VERSION_1_2 {
            all = all.push_next(&mut driver).push_next(&mut ids);
        }
        if version >= vk::API_VERSION_1_3 {
            all = all.push_next(&mut sizes);
        }
        // SAFETY: as above, and the chained structures are of the device's version.
        unsafe { instance.raw.get_physical_device_properties2(device, &mut all) };
        let base = all.properties;
        // SAFETY: the device is one of this instance.
        let features = unsafe { instance.raw.get_physical_device_features(device) };
        let heaps = Heaps::of(instance, device);
        let (no_units, refused) = match verdict(driver.driver_id, base.device_type) {
            Verdict::Good => (None, None),
            Verdict::NoUnits(why) => (Some(why), None),
            Verdict::Refused(why) => (Some(why), Some(why)),
        };
        // Where all widths share a mode, none is asked for: kernels may have others too.
        let free = |of| of != vk::ShaderFloatControlsIndependence::NONE;
        let keeps = driver.shader_denorm_preserve_float32 == vk::TRUE
            && free(driver.denorm_behavior_independence);
        Ok(Self {
            name: text(base.device_name_as_c_str().unwrap_or_default()),
            driver: text(driver.driver_name_as_c_str().unwrap_or_default()),
            driver_version: text(driver.driver_info_as_c_str().unwrap_or_default()),
            api_version: version_text(version),
            kind: kind(base.device_type),
            device_bytes: heaps.device,
            visible_bytes: heaps.visible,
            free_bytes: heaps.free,
            subgroup_size: ids.subgroup_size,
            integer_dot: sizes.integer_dot_product4x8_bit_packed_signed_accelerated == vk::TRUE,
            keeps_subnormals: keeps,
            matrices: match no_units {
                None => matrices(instance, device),
                Some(_) => Vec::new(),
            },
            transfer_queue: transfer_queue_of(instance, device, kind(base.device_type)),
            no_units,
            refused,
            float64: features.shader_float64 == vk::TRUE,
            limits: Limits {
                allocation: ids.max_memory_allocation_size.min(sizes.max_buffer_size),
                subgroup: sizes.max_subgroup_size,
                controls: FloatControls {
                    keep_subnormals: keeps,
                    keep_signs_and_infinities: driver.shader_signed_zero_inf_nan_preserve_float32
                        == vk::TRUE,
                    round_to_even: driver.shader_rounding_mode_rte_float32 == vk::TRUE
                        && free(driver.rounding_mode_independence),
                },
                identity: Identity {
                    vendor: base.vendor_id,
                    device: base.device_id,
                    device_uuid: ids.device_uuid,
                    driver_uuid: ids.driver_uuid,
                    cache_uuid: base.pipeline_cache_uuid,
                },
            },
        })
    }
}

/// The queue for transfers to a device of this class. What shares the host's memory needs none.
fn transfer_queue_of(
    instance: &Instance,
    device: vk::PhysicalDevice,
    class: DeviceClass,
) -> TransferQueue {
    let families = families(instance, device);
    let found = compute_family(&families).filter(|_| !class.shares_host_memory());
    let found = found.and_then(|compute| transfer_queue(&families, compute));
    found.map_or(TransferQueue::Kernels, |(sort, _)| sort)
}

/// Sizes of a device's memories.
pub(crate) struct Heaps {
    device: u64,
    visible: u64,
    /// Free bytes of the largest heap.
    pub(crate) free: u64,
}

impl Heaps {
    pub(crate) fn of(instance: &Instance, device: vk::PhysicalDevice) -> Self {
        let tells = instance.device_has(device, ext::memory_budget::NAME);
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut all = vk::PhysicalDeviceMemoryProperties2::default();
        if tells {
            all = all.push_next(&mut budget);
        }
        // SAFETY: the device is one of this instance, and has the extension of what is chained.
        unsafe { instance.raw.get_physical_device_memory_properties2(device, &mut all) };
        let memory = all.memory_properties;
        let mut heaps = Self { device: 0, visible: 0, free: 0 };
        for kind in memory.memory_types_as_slice() {
            let heap = kind.heap_index as usize;
            let size = memory.memory_heaps[heap].size;
            if kind.property_flags.contains(vk::MemoryPropertyFlags::DEVICE_LOCAL) {
                if size > heaps.device {
                    let left = budget.heap_budget[heap].saturating_sub(budget.heap_usage[heap]);
                    heaps.free = if tells { left.min(size) } else { size };
                }
                heaps.device = heaps.device.max(size);
                if kind.property_flags.contains(vk::MemoryPropertyFlags::HOST_VISIBLE) {
                    heaps.visible = heaps.visible.max(size);
                }
            }
        }
        heaps
    }
}

/// The shapes of matrix units over subgroups.
fn matrices(instance: &Instance, device: vk::PhysicalDevice) -> Vec<MatrixShape> {
    if !instance.device_has(device, khr::cooperative_matrix::NAME) {
        return Vec::new();
    }
    let UnitFeatures { units, orders_memory, halves } = unit_features(instance, device);
    if !units || !orders_memory {
        return Vec::new();
    }
    let units = khr::cooperative_matrix::Instance::new(&instance.entry, &instance.raw);
    // SAFETY: the device is one of this instance and has the extension.
    let found = unsafe { units.get_physical_device_cooperative_matrix_properties(device) };
    let shapes = found.unwrap_or_default();
    let shapes = shapes.iter().filter(|shape| {
        shape.scope == vk::ScopeKHR::SUBGROUP
            && shape.a_type == shape.b_type
            && shape.c_type == shape.result_type
            && shape.saturating_accumulation == vk::FALSE
            && (halves || shape.a_type != vk::ComponentTypeKHR::FLOAT16)
    });
    let shapes = shapes.map(|shape| MatrixShape {
        m: shape.m_size,
        n: shape.n_size,
        k: shape.k_size,
        factors: matrix_type(shape.a_type),
        sums: matrix_type(shape.c_type),
    });
    shapes.collect()
}

/// Features that matrix units ask for.
struct UnitFeatures {
    /// Whether there are matrix units. A driver may know the extension and have none for this device.
    units: bool,
    /// Kernels can be held to Vulkan's memory model, with atomics that the whole device sees.
    orders_memory: bool,
    /// Whether kernels can use f16.
    halves: bool,
}

/// Asks for features of a device that has the extension of matrix units.
fn unit_features(instance: &Instance, device: vk::PhysicalDevice) -> UnitFeatures {
    let mut v12 = vk::PhysicalDeviceVulkan12Features::default();
    let mut matrices = vk::PhysicalDeviceCooperativeMatrixFeaturesKHR::default();
    let mut all =
        vk::PhysicalDeviceFeatures2::default().push_next(&mut v12).push_next(&mut matrices);
    // SAFETY: the device is one of this instance, and has the extension of what is chained; one of a version before 1.2 leaves the
    // other structure as it is.
    unsafe { instance.raw.get_physical_device_features2(device, &mut all) };
    let of_model = [v12.vulkan_memory_model, v12.vulkan_memory_model_device_scope];
    UnitFeatures {
        units: matrices.cooperative_matrix == vk::TRUE,
        orders_memory: of_model == [vk::TRUE; 2],
        halves: v12.shader_float16 == vk::TRUE,
    }
}

fn matrix_type(of: vk::ComponentTypeKHR) -> MatrixType {
    match of {
        vk::ComponentTypeKHR::FLOAT16 => MatrixType::F16,
        vk::ComponentTypeKHR::FLOAT32 => MatrixType::F32,
        vk::ComponentTypeKHR::SINT8 => MatrixType::I8,
        vk::ComponentTypeKHR::UINT8 => MatrixType::U8,
        vk::ComponentTypeKHR::SINT32 => MatrixType::I32,
        _ => MatrixType::Other,
    }
}

fn kind(of: vk::PhysicalDeviceType) -> DeviceClass {
    match of {
        vk::PhysicalDeviceType::DISCRETE_GPU => DeviceClass::Discrete,
        vk::PhysicalDeviceType::INTEGRATED_GPU => DeviceClass::Integrated,
        vk::PhysicalDeviceType::VIRTUAL_GPU => DeviceClass::Virtual,
        vk::PhysicalDeviceType::CPU => DeviceClass::Software,
        _ => DeviceClass::Other,
    }
}

fn version_text(version: u32) -> String {
    let [major, minor, patch] =
        [vk::api_version_major, vk::api_version_minor, vk::api_version_patch].map(|of| of(version));
    format!("{major}.{minor}.{patch}")
}

fn text(name: &CStr) -> String {
    name.to_string_lossy().into_owned()
}

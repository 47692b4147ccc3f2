//! GPUs as a kind of device.

use std::sync::Arc;

use brigade_ops::{DeviceFacts, DeviceKind, DeviceOptions, MatrixUnits, OpenDevice};
use brigade_quant::DeviceError;

use crate::device::Gpu;
use crate::vulkan::facts::GpuFacts;
use crate::vulkan::queues::TransferQueue;

/// GPUs that are called through Vulkan.
pub static VULKAN: DeviceKind = DeviceKind { prefix: "vulkan", title: "Vulkan", list, open };

fn list() -> Result<Vec<DeviceFacts>, DeviceError> {
    Ok(Gpu::devices()?.iter().map(DeviceFacts::from).collect())
}

fn open(index: usize, options: &DeviceOptions) -> Result<OpenDevice, DeviceError> {
    let gpu = Gpu::open(index, options)?;
    let facts = gpu.facts().into();
    let device = Arc::new(gpu.clone());
    Ok(OpenDevice { device, facts, free_bytes: Box::new(move || gpu.free_bytes()) })
}

impl From<&GpuFacts> for DeviceFacts {
    fn from(facts: &GpuFacts) -> Self {
        Self {
            name: facts.name.clone(),
            class: facts.kind,
            driver: facts.driver.clone(),
            driver_version: facts.driver_version.clone(),
            api_version: facts.api_version.clone(),
            device_bytes: facts.device_bytes,
            free_bytes: facts.free_bytes,
            units: MatrixUnits {
                any: !facts.matrices.is_empty(),
                int8: facts.has_int8_units(),
                f16: facts.has_f16_units(),
                left_alone: facts.no_units,
            },
            sends_beside: facts.transfer_queue != TransferQueue::Kernels,
            refused: facts.refused,
        }
    }
}

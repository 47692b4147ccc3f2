//! The devices of a process: which GPUs are open, and how they are used.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use brigade_gpu::Gpu;
pub use brigade_gpu::{GpuError, GpuFacts, GpuKind, GpuOptions};

use super::{Device, DeviceName, DeviceWish, numerics_of, self_test};
use crate::kernels::{DeviceError, KernelError, select};
use crate::ops::Accelerator;

/// Opens devices. All stages of a process share one of these, and so the memory and the kernels of each GPU.
#[derive(Default)]
pub struct Devices {
    options: GpuOptions,
    gpus: Mutex<Gpus>,
}

#[derive(Default)]
struct Gpus {
    open: BTreeMap<usize, Arc<Gpu>>,
    /// Whether one was opened before: only the first is lost on purpose.
    any: bool,
}

impl Devices {
    /// Devices whose GPUs are used like that.
    pub fn new(options: GpuOptions) -> Self {
        Self { options, gpus: Mutex::default() }
    }

    /// The device of that name, with `threads` threads of the host, pinned to `cpus` if given.
    ///
    /// # Errors
    /// There is no such table or GPU, the GPU computes other bits than it has to, or the system refuses a thread.
    pub fn open(
        &self,
        name: &DeviceName,
        threads: usize,
        cpus: Option<&[usize]>,
    ) -> Result<Device, KernelError> {
        match name {
            DeviceName::Cpu(table) => Device::cpu(select(table.as_deref())?, threads, cpus),
            DeviceName::Vulkan(index) => {
                Device::beside_host(self.gpu(*index)?, &name.to_string(), threads, cpus)
            }
        }
    }

    /// What a wish comes to here. A driver that computes in software is used only where it is named.
    pub fn choose(&self, wish: &DeviceWish) -> DeviceName {
        match wish {
            DeviceWish::Named(name) => name.clone(),
            DeviceWish::Auto => self.first_gpu().map_or(DeviceName::Cpu(None), DeviceName::Vulkan),
        }
    }

    /// Opens the GPU of that name and tests it; for the CPU there is nothing to do, unless fast math was asked for.
    ///
    /// # Errors
    /// As [`Devices::open`]; and the CPU has no fast math.
    pub fn check(&self, name: &DeviceName) -> Result<(), KernelError> {
        match name {
            DeviceName::Cpu(_) if self.options.fast_math => {
                Err(DeviceError::from(GpuError::FastMathOnCpu).into())
            }
            DeviceName::Cpu(_) => Ok(()),
            DeviceName::Vulkan(index) => self.gpu(*index).map(drop),
        }
    }

    /// The number of what a device computes: [`Device::numerics`].
    ///
    /// # Errors
    /// As [`Devices::open`].
    pub fn numerics(&self, name: &DeviceName) -> Result<u32, KernelError> {
        match name {
            DeviceName::Cpu(table) => Ok(select(table.as_deref())?.numerics),
            DeviceName::Vulkan(index) => Ok(numerics_of(&Accelerator::facts(&*self.gpu(*index)?))),
        }
    }

    /// What a device is called when it is open: by its kernel table, or by its own name.
    ///
    /// # Errors
    /// There is no such table.
    pub fn called(&self, name: &DeviceName) -> Result<String, KernelError> {
        match name {
            DeviceName::Cpu(table) => Ok(select(table.as_deref())?.name.to_owned()),
            DeviceName::Vulkan(_) => Ok(name.to_string()),
        }
    }

    /// Bytes of a device's own memory that nobody uses now; `None` where stages lie in the host's, and while a GPU cannot
    /// be opened.
    pub fn free_bytes(&self, name: &DeviceName) -> Option<u64> {
        let DeviceName::Vulkan(index) = name else { return None };
        let gpu = self.gpu(*index).ok()?;
        (!gpu.facts().shares_host_memory()).then(|| gpu.free_bytes())
    }

    /// The index of the first GPU that is no software and that opens.
    fn first_gpu(&self) -> Option<usize> {
        let all = match Gpu::devices() {
            Ok(all) => all,
            Err(reason) => {
                tracing::info!(%reason, "no GPU: the CPU computes");
                return None;
            }
        };
        let hardware =
            |(index, facts): (usize, GpuFacts)| (facts.kind != GpuKind::Software).then_some(index);
        all.into_iter().enumerate().filter_map(hardware).find(|index| match self.gpu(*index) {
            Ok(_) => true,
            Err(reason) => {
                tracing::warn!(index, %reason, "this GPU is not used");
                false
            }
        })
    }

    /// The GPU of that index: the same one for all stages, until it fails. It is tested when it is opened.
    fn gpu(&self, index: usize) -> Result<Arc<Gpu>, KernelError> {
        let mut gpus = self.gpus.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = gpus.open.get(&index).filter(|gpu| gpu.check().is_ok()) {
            return Ok(gpu.clone());
        }
        // One that failed is closed before it is opened again, unless a stage still has it.
        gpus.open.remove(&index);
        let lose_after = self.options.lose_after.filter(|_| !gpus.any);
        let gpu = Gpu::open(index, &GpuOptions { lose_after, ..self.options.clone() });
        let gpu = Arc::new(gpu.map_err(DeviceError::from)?);
        gpus.any = true;
        self_test::test(&gpu)?;
        gpus.open.insert(index, gpu.clone());
        Ok(gpu)
    }
}

/// What each GPU of this machine says of itself, in the order of their indices.
///
/// # Errors
/// Where there is no Vulkan or no driver: what to install.
pub fn gpus() -> Result<Vec<GpuFacts>, GpuError> {
    Gpu::devices()
}

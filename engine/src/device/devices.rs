//! The devices of a process: which are open beside the host, and how they are used.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::hardware::may_have_accelerators;
use super::kinds::KINDS;
use super::{Device, DeviceName, DeviceWish, numerics_of, self_test};
use crate::kernels::{DeviceError, DeviceFault, KernelError, Kernels, fast, select};
use crate::ops::{DeviceClass, DeviceFacts, DeviceKind, DeviceOptions, OpenDevice};

/// Opens devices. All stages of a process share one of these, and so the memory and the kernels of each device beside the host.
#[derive(Default)]
pub struct Devices {
    options: DeviceOptions,
    accelerators: Mutex<Accelerators>,
    /// The device that was tested elsewhere.
    tested: Option<String>,
}

#[derive(Default)]
struct Accelerators {
    /// By the prefix of their kind, and their index.
    open: BTreeMap<(&'static str, usize), Arc<OpenDevice>>,
    /// Whether one was opened before: only the first is lost on purpose.
    any: bool,
}

/// Why the CPU alone is not used with fast math.
const FAST_MATH_ON_CPU: &str = "--fast-math is for GPUs with f16 matrix units and for CPUs with AVX-512 BF16, and here a CPU without it \
    computes: start without --fast-math, or name such a GPU with --device (`brigade devices` lists them)";

/// Why a table is not used with fast math.
const FAST_MATH_TABLE: &str = "--fast-math has a kernel table of its own on CPUs, avx512bf16: start without --kernels or without \
    --fast-math";

impl Devices {
    /// Devices that are used like that.
    pub fn new(options: DeviceOptions) -> Self {
        Self { options, accelerators: Mutex::default(), tested: None }
    }

    /// Whether products may have bits of their own: [`DeviceOptions::fast_math`].
    pub fn has_fast_math(&self) -> bool {
        self.options.fast_math
    }

    /// The same, where another process has tested the device of that name just now: it is tested here when it has failed.
    pub fn tested(self, name: &str) -> Self {
        Self { tested: Some(name.to_owned()), ..self }
    }

    /// The device of that name, with `threads` threads of the host, pinned to `cpus` if given.
    ///
    /// # Errors
    /// There is no such table or GPU, the GPU computes other bits than it has to, the CPU has no fast math where that was asked for,
    /// or the system refuses a thread.
    pub fn open(
        &self,
        name: &DeviceName,
        threads: usize,
        cpus: Option<&[usize]>,
    ) -> Result<Device, KernelError> {
        match name {
            DeviceName::Cpu(table) => Device::cpu(self.table(table.as_deref())?, threads, cpus),
            DeviceName::Accelerator { kind, index } => {
                let device = self.accelerator(kind, *index)?.device.clone();
                Device::beside_host(device, &name.to_string(), threads, cpus)
            }
        }
    }

    /// The device that a wish comes to on this machine. A driver that computes in software is used only where it is
    /// named.
    pub fn choose(&self, wish: &DeviceWish) -> DeviceName {
        match wish {
            DeviceWish::Named(name) => name.clone(),
            DeviceWish::Auto => self.first_accelerator().unwrap_or(DeviceName::Cpu(None)),
        }
    }

    /// The kernel table of the CPU: that of the name, or the fastest one.
    fn table(&self, name: Option<&str>) -> Result<&'static Kernels, KernelError> {
        if !self.options.fast_math {
            return select(name);
        }
        let unfit = |text: &str| {
            KernelError::from(DeviceError { fault: DeviceFault::Unfit, text: text.to_owned() })
        };
        let table = fast().ok_or_else(|| unfit(FAST_MATH_ON_CPU))?;
        let is_it = name.is_none_or(|name| name == table.name);
        if is_it { Ok(table) } else { Err(unfit(FAST_MATH_TABLE)) }
    }

    /// Opens the GPU of that name and tests it; of the CPU it looks for the kernel table.
    ///
    /// # Errors
    /// As [`Devices::open`].
    pub fn check(&self, name: &DeviceName) -> Result<(), KernelError> {
        match name {
            DeviceName::Cpu(table) => self.table(table.as_deref()).map(drop),
            DeviceName::Accelerator { kind, index } => self.accelerator(kind, *index).map(drop),
        }
    }

    /// The number of what a device computes: [`Device::numerics`].
    ///
    /// # Errors
    /// As [`Devices::open`].
    pub fn numerics(&self, name: &DeviceName) -> Result<u32, KernelError> {
        match name {
            DeviceName::Cpu(table) => Ok(self.table(table.as_deref())?.numerics),
            DeviceName::Accelerator { kind, index } => {
                Ok(numerics_of(&self.accelerator(kind, *index)?.device.facts()))
            }
        }
    }

    /// The name of a device when it is open: that of its kernel table, or its own.
    ///
    /// # Errors
    /// As [`Devices::open`].
    pub fn called(&self, name: &DeviceName) -> Result<String, KernelError> {
        match name {
            DeviceName::Cpu(table) => Ok(self.table(table.as_deref())?.name.to_owned()),
            DeviceName::Accelerator { .. } => Ok(name.to_string()),
        }
    }

    /// Bytes of a device's own memory that nobody uses now; `None` where stages lie in the host's, and while a GPU cannot
    /// be opened.
    pub fn free_bytes(&self, name: &DeviceName) -> Option<u64> {
        let DeviceName::Accelerator { kind, index } = name else { return None };
        let open = self.accelerator(kind, *index).ok()?;
        (!open.facts.class.shares_host_memory()).then(|| (open.free_bytes)())
    }

    /// The first device beside the host that is no software and that opens.
    fn first_accelerator(&self) -> Option<DeviceName> {
        if !may_have_accelerators() {
            tracing::info!(
                "no GPU: the system shows no device file of one, and the CPU computes; install the card's driver if there is one, or \
                 name a GPU with --device"
            );
            return None;
        }
        let (found, reasons) = list();
        if found.is_empty() {
            for reason in reasons {
                tracing::info!(%reason, "no GPU: the CPU computes");
            }
        }
        let mut hardware = found.iter().filter(|found| found.facts.class != DeviceClass::Software);
        let opens = |found: &&Listed| match self.accelerator(found.kind, found.index) {
            Ok(_) => true,
            Err(reason) => {
                tracing::warn!(index = found.index, %reason, "this GPU is not used");
                false
            }
        };
        if self.options.fast_math {
            // One that has no fast math is to be refused by name: the CPU may be far slower.
            return hardware.next().map(Listed::name);
        }
        hardware.find(opens).map(Listed::name)
    }

    /// The device of that index: the same one for all stages, until it fails. It is tested when it is opened.
    fn accelerator(
        &self,
        kind: &'static DeviceKind,
        index: usize,
    ) -> Result<Arc<OpenDevice>, KernelError> {
        let mut all = self.accelerators.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind.prefix, index);
        if let Some(open) = all.open.get(&key).filter(|open| open.device.check().is_ok()) {
            return Ok(open.clone());
        }
        // One that failed is closed before it is opened again, unless a stage still has it.
        all.open.remove(&key);
        let lose_after = self.options.lose_after.filter(|_| !all.any);
        let open = (kind.open)(index, &DeviceOptions { lose_after, ..self.options.clone() })?;
        let name = DeviceName::Accelerator { kind, index }.to_string();
        let is_tested = !all.any && self.tested.as_ref() == Some(&name);
        all.any = true;
        if !is_tested {
            self_test::test(&open)?;
        }
        let open = Arc::new(open);
        all.open.insert(key, open.clone());
        Ok(open)
    }
}

/// A device beside the host that this machine has.
pub struct Listed {
    /// The device's kind.
    pub kind: &'static DeviceKind,
    /// The device's index among those of its kind.
    pub index: usize,
    /// The device's facts.
    pub facts: DeviceFacts,
}

impl Listed {
    /// The device's name.
    pub fn name(&self) -> DeviceName {
        DeviceName::Accelerator { kind: self.kind, index: self.index }
    }
}

/// The devices beside the host that this machine has; and of each kind that finds none, why, and what to install.
pub fn list() -> (Vec<Listed>, Vec<DeviceError>) {
    let (mut found, mut reasons) = (Vec::new(), Vec::new());
    for &kind in KINDS {
        match (kind.list)() {
            Ok(all) => {
                let listed = |(index, facts)| Listed { kind, index, facts };
                found.extend(all.into_iter().enumerate().map(listed));
            }
            Err(reason) => reasons.push(reason),
        }
    }
    (found, reasons)
}

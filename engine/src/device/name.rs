//! What devices are called: `cpu`, a kernel table of it, `vulkan:0`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use brigade_gpu::{Gpu, GpuError, GpuFacts, GpuKind, GpuOptions};

use super::Device;
use crate::kernels::{KernelError, select};

/// The name of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The CPU, with this kernel table or its best one.
    Cpu(Option<String>),
    /// The GPU of this index, as `brigade devices` lists them.
    Vulkan(usize),
}

/// What GPUs' names begin with.
const VULKAN: &str = "vulkan";

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "cpu" {
            return Ok(Self::Cpu(None));
        }
        let Some(rest) = name.strip_prefix(VULKAN) else {
            return Ok(Self::Cpu(Some(name.to_owned())));
        };
        let index = match rest.strip_prefix(':') {
            None if rest.is_empty() => Some(0),
            None => None,
            Some(index) => index.parse().ok(),
        };
        let wrong = || format!("\"{name}\" is no device: a GPU is vulkan:0, vulkan:1 and so on");
        index.map(Self::Vulkan).ok_or_else(wrong)
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(None) => f.write_str("cpu"),
            Self::Cpu(Some(table)) => f.write_str(table),
            Self::Vulkan(index) => write!(f, "{VULKAN}:{index}"),
        }
    }
}

/// What is asked for: `auto`, or a device by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceWish {
    /// The first GPU that is one and that can be used, else the CPU.
    #[default]
    Auto,
    /// This one.
    Named(DeviceName),
}

impl FromStr for DeviceWish {
    type Err = String;

    fn from_str(wish: &str) -> Result<Self, String> {
        match wish {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Named(DeviceName::Cpu(None))),
            name if name.starts_with(VULKAN) => name.parse().map(Self::Named),
            _ => Err(format!("\"{wish}\" is none of auto, cpu, vulkan:0, vulkan:1 and so on")),
        }
    }
}

impl DeviceWish {
    /// The device that it comes to here. A driver that computes in software is used only where it is named.
    pub fn choose(&self) -> DeviceName {
        match self {
            Self::Named(name) => name.clone(),
            Self::Auto => first_gpu().map_or(DeviceName::Cpu(None), DeviceName::Vulkan),
        }
    }
}

/// The index of the first GPU that is no software and that opens.
fn first_gpu() -> Option<usize> {
    let all = match Gpu::devices() {
        Ok(all) => all,
        Err(reason) => {
            tracing::debug!(%reason, "no GPU: the CPU computes");
            return None;
        }
    };
    let hardware =
        |(index, facts): (usize, GpuFacts)| (facts.kind != GpuKind::Software).then_some(index);
    all.into_iter().enumerate().filter_map(hardware).find(|index| match shared(*index) {
        Ok(_) => true,
        Err(reason) => {
            tracing::warn!(index, %reason, "this GPU is not used");
            false
        }
    })
}

impl Device {
    /// The device of that name, with `threads` threads of the host, pinned to `cpus` if given.
    ///
    /// # Errors
    /// There is no such table or GPU, or the system refuses a thread.
    pub fn open(
        name: &DeviceName,
        threads: usize,
        cpus: Option<&[usize]>,
    ) -> Result<Self, KernelError> {
        match name {
            DeviceName::Cpu(table) => Self::cpu(select(table.as_deref())?, threads, cpus),
            DeviceName::Vulkan(index) => Self::vulkan(shared(*index)?, name, threads, cpus),
        }
    }
}

/// The GPU of that index: the same one for all stages of the process, until it fails.
fn shared(index: usize) -> Result<Gpu, GpuError> {
    static OPEN: Mutex<BTreeMap<usize, Gpu>> = Mutex::new(BTreeMap::new());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(gpu) = open.get(&index).filter(|gpu| gpu.check().is_ok()) {
        return Ok(gpu.clone());
    }
    let gpu = Gpu::open(index, &GpuOptions::default())?;
    open.insert(index, gpu.clone());
    Ok(gpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let read = |name: &str| name.parse::<DeviceName>();
        for name in ["cpu", "avx2", "vulkan:0", "vulkan:12"] {
            assert_eq!(read(name).unwrap().to_string(), name);
        }
        assert_eq!(read("vulkan"), Ok(DeviceName::Vulkan(0)));
        for name in ["vulkan:", "vulkan:x", "vulkan0"] {
            assert!(read(name).unwrap_err().contains("vulkan:1"), "{name}");
        }
    }
}

//! What devices are called: `cpu`, a kernel table of it, `vulkan:0`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use brigade_gpu::{Gpu, GpuError, GpuOptions};

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
            DeviceName::Vulkan(index) => Self::vulkan(shared(*index)?, threads, cpus),
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

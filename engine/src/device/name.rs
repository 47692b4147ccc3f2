//! What devices are called: `cpu`, a kernel table of it, `vulkan:0`.

use std::fmt;
use std::str::FromStr;

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

impl DeviceName {
    /// Whether the host's cores compute, with one of the kernel tables.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Self::Cpu(_))
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

/// What is written behind a GPU's name where the host computes beside it.
const BESIDE: &str = "+cpu";

/// A GPU's name without the `+cpu` behind it, and whether that stood there.
///
/// # Errors
/// It stands behind what is no GPU.
pub fn split_beside(name: &str) -> Result<(&str, bool), String> {
    match name.strip_suffix(BESIDE) {
        None => Ok((name, false)),
        Some(gpu) if gpu.starts_with(VULKAN) => Ok((gpu, true)),
        Some(other) => Err(format!(
            "\"{other}{BESIDE}\" is no device: {BESIDE} stands behind a GPU's name, as in vulkan:0{BESIDE}"
        )),
    }
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
        assert_eq!(split_beside("vulkan:1+cpu"), Ok(("vulkan:1", true)));
        assert_eq!(split_beside("cpu"), Ok(("cpu", false)));
        assert!(split_beside("auto+cpu").unwrap_err().contains("vulkan:0+cpu"));
        for name in ["vulkan:", "vulkan:x", "vulkan0"] {
            assert!(read(name).unwrap_err().contains("vulkan:1"), "{name}");
        }
    }
}

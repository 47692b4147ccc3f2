//! Names of devices: `cpu`, a kernel table of it, `vulkan:0`. `cpu`, a kernel table of it, `vulkan:0`.

use std::fmt;
use std::str::FromStr;

use super::kinds::{KINDS, examples, kind_of};
use crate::ops::DeviceKind;

/// The name of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// The CPU, with this kernel table or its best one.
    Cpu(Option<String>),
    /// A device beside the host, as `brigade devices` lists them.
    Accelerator {
        /// The device's kind.
        kind: &'static DeviceKind,
        /// The device's index among those of its kind.
        index: usize,
    },
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "cpu" {
            return Ok(Self::Cpu(None));
        }
        let Some((kind, rest)) = kind_of(name) else {
            return Ok(Self::Cpu(Some(name.to_owned())));
        };
        let index = match rest.strip_prefix(':') {
            None if rest.is_empty() => Some(0),
            None => None,
            Some(index) => index.parse().ok(),
        };
        let wrong =
            || format!("\"{name}\" is no device: a GPU is {0}:0, {0}:1 and so on", kind.prefix);
        index.map(|index| Self::Accelerator { kind, index }).ok_or_else(wrong)
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu(None) => f.write_str("cpu"),
            Self::Cpu(Some(table)) => f.write_str(table),
            Self::Accelerator { kind, index } => write!(f, "{}:{index}", kind.prefix),
        }
    }
}

impl DeviceName {
    /// Whether the host's cores compute, with one of the kernel tables.
    pub fn is_cpu(&self) -> bool {
        matches!(self, Self::Cpu(_))
    }
}

/// A device that somebody asks for: `auto`, or a device by its name. `auto`, or a device by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DeviceWish {
    /// The first GPU that is one and that can be used, else the CPU.
    #[default]
    Auto,
    /// The device with this name.
    Named(DeviceName),
}

impl FromStr for DeviceWish {
    type Err = String;

    fn from_str(wish: &str) -> Result<Self, String> {
        match wish {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Named(DeviceName::Cpu(None))),
            name if kind_of(name).is_some() => name.parse().map(Self::Named),
            _ => Err(format!("\"{wish}\" is none of auto, cpu, {} and so on", examples())),
        }
    }
}

/// Ending of a GPU's name where the host computes beside it.
const BESIDE: &str = "+cpu";

/// A GPU's name without the `+cpu` behind it, and whether that stood there.
///
/// # Errors
/// The `+cpu` stands behind a name that is no GPU's.
pub fn split_beside(name: &str) -> Result<(&str, bool), String> {
    match name.strip_suffix(BESIDE) {
        None => Ok((name, false)),
        Some(gpu) if kind_of(gpu).is_some() => Ok((gpu, true)),
        Some(other) => {
            let example = KINDS.first().map_or("", |kind| kind.prefix);
            Err(format!(
                "\"{other}{BESIDE}\" is no device: {BESIDE} stands behind a GPU's name, as in {example}:0{BESIDE}"
            ))
        }
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
        assert_eq!(read("vulkan"), read("vulkan:0"));
        assert_eq!(split_beside("vulkan:1+cpu"), Ok(("vulkan:1", true)));
        assert_eq!(split_beside("cpu"), Ok(("cpu", false)));
        assert!(split_beside("auto+cpu").unwrap_err().contains("vulkan:0+cpu"));
        for name in ["vulkan:", "vulkan:x", "vulkan0"] {
            assert!(read(name).unwrap_err().contains("vulkan:1"), "{name}");
        }
    }
}

//! The kinds of devices beside the host. A device of a new kind is a crate, and its line here.

use crate::kernels::DeviceError;
use crate::ops::{DeviceFacts, DeviceKind};

/// All kinds. With `auto`, devices of the first are looked for first.
pub static KINDS: &[&DeviceKind] = &[
    // Each on a line of its own, by the path of its crate.
    &brigade_gpu::VULKAN,
];

/// The kind that a device's name begins with, and the rest of that name.
pub(super) fn kind_of(name: &str) -> Option<(&'static DeviceKind, &str)> {
    KINDS.iter().find_map(|kind| Some((*kind, name.strip_prefix(kind.prefix)?)))
}

/// Names of devices as examples: the first two of each kind.
pub(super) fn examples() -> String {
    let two = |kind: &&DeviceKind| format!("{0}:0, {0}:1", kind.prefix);
    KINDS.iter().map(two).collect::<Vec<_>>().join(", ")
}

/// The facts of each GPU that is called through Vulkan: for tests and benches of GPUs.
///
/// # Errors
/// Where there is no Vulkan or no driver: what to install.
pub fn gpus() -> Result<Vec<DeviceFacts>, DeviceError> {
    (brigade_gpu::VULKAN.list)()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{available, unfused};

    #[test]
    fn a_name_says_what_computes() {
        let tables = available().into_iter().chain([unfused()]).map(|table| table.name);
        let mut taken: Vec<&str> = tables.chain(["auto", "cpu"]).collect();
        for kind in KINDS {
            let may_mean_both =
                |other: &&str| other.starts_with(kind.prefix) || kind.prefix.starts_with(*other);
            assert_eq!(taken.iter().find(|other| may_mean_both(other)), None, "{}", kind.prefix);
            assert!(kind.prefix.chars().all(|c| c.is_ascii_lowercase()), "{}", kind.prefix);
            taken.push(kind.prefix);
        }
    }
}

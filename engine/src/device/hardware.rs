//! Whether this machine may have a device beside the host, by the files with which its kernel shows one.
//!
//! Asking drivers costs much where there is none. Each driver that is installed is loaded, with the compiler of the one that
//! computes in software. That takes a tenth of a second and 14 MB, which the process then holds to its end.

use std::path::Path;

/// Where Linux shows devices.
const DEVICES: &str = "/dev";

/// Beginnings of names in [`DEVICES`], with the driver or system that has them. Every driver of a GPU calls one of these.
const NODES: [&str; 9] = [
    // Mesa's drivers and others of Linux's own interface. A screen without a GPU has no render node.
    "dri/renderD",
    // NVIDIA's driver, and its integrated GPUs.
    "nvidia",
    "nvgpu",
    "nvhost",
    // AMD's for computing.
    "kfd",
    // Windows' subsystem for Linux.
    "dxg",
    // Qualcomm's, ARM's and Imagination's.
    "kgsl",
    "mali",
    "pvr",
];

/// Whether drivers have to be asked for devices. False is certain: there is none, or this process may not use it.
pub fn may_have_accelerators() -> bool {
    !cfg!(target_os = "linux") || has_node(Path::new(DEVICES))
}

/// Whether a folder of devices has one of [`NODES`], or cannot be looked at.
fn has_node(devices: &Path) -> bool {
    let begins_with = |node: &str| {
        let (folder, name) = node.rsplit_once('/').unwrap_or(("", node));
        let Ok(mut entries) = devices.join(folder).read_dir() else { return folder.is_empty() };
        entries.any(|entry| {
            entry.map_or(true, |entry| entry.file_name().to_string_lossy().starts_with(name))
        })
    };
    NODES.into_iter().any(begins_with)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_known_by_its_files() {
        let dir = std::env::temp_dir().join(format!("brigade-devices-{}", std::process::id()));
        let make = |name: &str| {
            let path = dir.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, []).unwrap();
        };
        assert!(has_node(&dir), "what cannot be looked at may have one");
        make("null");
        assert!(!has_node(&dir));
        make("dri/card0");
        assert!(!has_node(&dir), "a screen is no GPU");
        make("dri/renderD128");
        assert!(has_node(&dir));
        std::fs::remove_file(dir.join("dri/renderD128")).unwrap();
        make("nvidia0");
        assert!(has_node(&dir));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

//! This machine: its identity for as long as it is up (processes that have the same one share
//! memory, cores and files), and its cores.

use std::collections::HashSet;
use std::fs;

/// Identity of this machine and this boot, and of the mount namespace, without which equal paths
/// need not mean equal files. Where the system does not say, an identity that equals no other, so
/// that nothing is shared by mistake.
pub fn host_id() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let mounts = fs::read_link("/proc/self/ns/mnt");
    match (boot, mounts) {
        (Ok(boot), Ok(mounts)) => format!("{}/{}", boot.trim(), mounts.display()),
        _ => {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let unique = (std::process::id(), now.map_or(0, |t| t.as_nanos()));
            format!("unknown-{}-{}", unique.0, unique.1)
        }
    }
}

/// Cores that this process may use: each once, whatever threads it has, and no more than its CPU
/// affinity and quota allow.
pub fn cores() -> usize {
    let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let siblings: HashSet<String> = cpus
        .filter_map(|cpu| fs::read_to_string(cpu.path().join("topology/core_cpus_list")).ok())
        .collect();
    if siblings.is_empty() { allowed } else { allowed.min(siblings.len()) }
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_is_the_same_twice_where_the_system_says() {
        if std::path::Path::new("/proc/self/ns/mnt").exists() {
            assert_eq!(super::host_id(), super::host_id());
        }
    }
}

//! How much memory this process may take: the machine's, or its cgroup's if that is less. Only Linux tells; elsewhere
//! `--memory` must be given. This module also makes room for bytes that come piece by piece.

use std::fs;
use std::path::{Path, PathBuf};

use brigade_proto::failure::{Failure, FailureKind};

use super::cgroup::{Version, folders};

/// Left to the process itself and the rest of the machine when `--memory` is not given.
pub const RESERVE_BYTES: u64 = 256 << 20;

/// Memory of a worker's process beside weights, caches and work memory for rows: code, stacks, buffers of the
/// transport, the allocator's slack.
pub const PROCESS_BYTES: u64 = 96 << 20;

/// Bytes free for this process now, without swapping: `MemAvailable`, or the bytes that its cgroups (v2, or v1's
/// memory controller) leave. The page cache counts as free. `None` where that cannot be known.
pub fn available_bytes() -> Option<u64> {
    let machine = meminfo_available(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    Some(cgroup_free(&cgroups, Path::new("/sys/fs/cgroup")).map_or(machine, |c| c.min(machine)))
}

/// Resident bytes of this process, now and at most since it began; `None` where that cannot be known.
pub fn resident_bytes() -> Option<[u64; 2]> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    Some([kib_field(&status, "VmRSS:")?, kib_field(&status, "VmHWM:")?])
}

/// Room for `more` bytes, and for as many again as have come, but never more than announced.
///
/// # Errors
/// NoMemory.
pub fn make_room(bytes: &mut Vec<u8>, more: usize, total: u64) -> Result<(), Failure> {
    if bytes.capacity() - bytes.len() >= more {
        return Ok(());
    }
    let left = usize::try_from(total).unwrap_or(usize::MAX).saturating_sub(bytes.len());
    bytes.try_reserve_exact(left.min(bytes.len().max(more))).map_err(|_| {
        let why = format!("no memory for {total} bytes of a state: give the machine more");
        Failure::refusal(FailureKind::NoMemory, why)
    })
}

fn meminfo_available(meminfo: &str) -> Option<u64> {
    kib_field(meminfo, "MemAvailable:")
}

fn kib_field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Least free over this process's memory cgroup and its parents. `cgroups` is /proc/self/cgroup.
fn cgroup_free(cgroups: &str, root: &Path) -> Option<u64> {
    let folders = folders(cgroups, root, "memory").into_iter();
    let free = folders.filter_map(|(folder, version)| match version {
        Version::One => free_in(&folder, &V1),
        Version::Two => free_in(&folder, &V2),
    });
    free.min()
}

/// File names of one cgroup version.
struct Files {
    limit: &'static str,
    usage: &'static str,
    inactive: &'static str,
}

const V2: Files = Files { limit: "memory.max", usage: "memory.current", inactive: "inactive_file" };
const V1: Files = Files {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    inactive: "total_inactive_file",
};

fn free_in(dir: &Path, files: &Files) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let path: PathBuf = dir.join(name);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    // "max" does not parse: no limit here.
    let limit = number(files.limit)?;
    let used = number(files.usage)?;
    let stat = fs::read_to_string(dir.join("memory.stat")).unwrap_or_default();
    let cache: u64 = stat
        .lines()
        .find_map(|line| line.strip_prefix(files.inactive)?.trim().parse().ok())
        .unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cache)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(dir).unwrap();
        for (name, text) in files {
            fs::write(dir.join(name), text).unwrap();
        }
    }

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        dir
    }

    #[test]
    fn the_tightest_cgroup_of_the_path_counts() {
        let root = scratch("cgroup2");
        let files = |limit, used| [("memory.max", limit), ("memory.current", used)];
        write(&root.join("a"), &files("1000", "400"));
        write(&root.join("a/b"), &files("max", "300"));
        write(&root.join("a/b"), &[("memory.stat", "anon 1\ninactive_file 50\n")]);
        assert_eq!(cgroup_free("0::/a/b\n", &root), Some(600));
        write(&root.join("a/b"), &files("500", "300"));
        assert_eq!(cgroup_free("0::/a/b\n", &root), Some(250));
        assert_eq!(cgroup_free("0::/elsewhere\n", &root), None);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn version_1_has_other_names() {
        let root = scratch("cgroup1");
        let dir = root.join("memory/x");
        write(&dir, &[("memory.limit_in_bytes", "900\n"), ("memory.usage_in_bytes", "100\n")]);
        let cgroups = "5:cpu,cpuacct:/x\n4:memory:/x\n";
        assert_eq!(cgroup_free(cgroups, &root), Some(800));
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn meminfo_is_in_kib() {
        assert_eq!(meminfo_available("MemTotal: 9 kB\nMemAvailable:   7 kB\n"), Some(7168));
    }
}

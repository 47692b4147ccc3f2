//! The machine on which a process runs: its identity for as long as it is up, and its cores. Processes that find the
//! same identity share memory, cores and files.

use std::collections::hash_map::RandomState;
use std::fs;
use std::hash::{BuildHasher, Hasher};

use crate::config::ConfigError;
use crate::machine::cpu_list;
use crate::machine::topology::Topology;

/// Identity of this machine and this boot, and of the mount namespace, without which equal paths need not mean equal
/// files. Where the system does not tell, the identity is unique, so that nothing is shared by mistake.
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

/// A number for this start of a worker, which is never 0 and is hardly ever another start's.
pub fn instance() -> u64 {
    // Seeded by the system for every one that is made.
    RandomState::new().build_hasher().finish().max(1)
}

/// Cores that are worth a thread each: a core with several hardware threads counts once, and CPU affinity and the quota of
/// the cgroup are respected. A quota of a part of a core is rounded.
pub fn cores() -> usize {
    let told = Topology::of_this_machine().usable_cores();
    told.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// CPUs that this process may use; `None` where the system does not tell.
fn allowed_cpus() -> Option<Vec<usize>> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    cpu_list::parse(list.trim())
}

/// Refuses CPUs that this machine has not, or that this process may not use. Beyond the system's largest number
/// pinning would even panic.
///
/// # Errors
/// [`ConfigError::Value`] of `option`, with the CPUs there are.
pub fn check_cpus(option: &'static str, cpus: &[usize]) -> Result<(), ConfigError> {
    let Some(allowed) = allowed_cpus() else { return Ok(()) };
    match cpus.iter().find(|cpu| !allowed.contains(cpu)) {
        None => Ok(()),
        Some(cpu) => {
            Err(ConfigError::Cpu { option, cpu: *cpu, allowed: cpu_list::ranges(&allowed) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_are_not_there_are_refused_with_those_that_are() {
        let Some(allowed) = allowed_cpus() else { return };
        assert!(check_cpus("--cpus", &allowed).is_ok());
        let error = check_cpus("--cpus", &[allowed[0], 4000]).unwrap_err().to_string();
        assert!(
            error.contains("CPU 4000") && error.ends_with(&cpu_list::ranges(&allowed)),
            "{error}"
        );
    }

    #[test]
    fn it_is_the_same_twice_where_the_system_says() {
        if std::path::Path::new("/proc/self/ns/mnt").exists() {
            assert_eq!(host_id(), host_id());
        }
    }
}

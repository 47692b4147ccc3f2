//! Machines that are folders of files.

use std::path::PathBuf;

use super::*;

/// A folder with these files, which goes with it.
struct Machine(PathBuf);

impl Machine {
    fn new(name: &str, files: &[(&str, &str)]) -> Self {
        let root =
            std::env::temp_dir().join(format!("brigade-topology-{name}-{}", std::process::id()));
        // One of an earlier process with this number.
        let _ = fs::remove_dir_all(&root);
        let machine = Self(root);
        files.iter().for_each(|(path, text)| machine.write(path, text));
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// CPUs `0..n` with so many threads a core: the second ones are numbered behind all first ones.
    fn cpus(&self, n: usize, threads: usize) {
        self.write("sys/devices/system/cpu/online", &format!("0-{}", n - 1));
        let cores = n / threads;
        for cpu in 0..n {
            let siblings: Vec<usize> = (0..threads).map(|t| cpu % cores + t * cores).collect();
            let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list");
            self.write(&path, &siblings.iter().map(usize::to_string).collect::<Vec<_>>().join(","));
        }
    }

    fn topology(&self) -> Topology {
        Topology::read(&self.0)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // What cannot be removed stays in the system's temporary folder.
        let _ = fs::remove_dir_all(&self.0);
    }
}

const TWO_NODES: [(&str, &str); 3] = [
    ("sys/devices/system/node/online", "0-1"),
    ("sys/devices/system/node/node0/cpulist", "0-3,8-11"),
    ("sys/devices/system/node/node1/cpulist", "4-7,12-15"),
];

#[test]
fn a_core_counts_once_and_threads_are_dealt_to_nodes() {
    let machine = Machine::new("nodes", &TWO_NODES);
    machine.cpus(16, 2);
    let topology = machine.topology();
    assert_eq!((topology.cores(), topology.usable_cores()), (Some(8), Some(8)));
    assert_eq!(topology.nodes(), [0, 1]);
    assert_eq!(topology.deal(8).unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(topology.deal(2).unwrap(), [0, 4]);
    assert_eq!(topology.deal(5).unwrap(), [0, 1, 2, 4, 5]);
    // Second threads of cores come last, and on their own node.
    assert_eq!(topology.deal(10).unwrap(), [0, 1, 2, 3, 8, 4, 5, 6, 7, 12]);
    assert_eq!(topology.deal(16).unwrap().len(), 16);
    assert_eq!(topology.deal(17), None);
    let said = topology.describe().join("\n");
    assert!(said.contains("1 socket, 8 cores, 16 hardware threads"), "{said}");
    assert!(said.contains("NUMA nodes: 0: CPUs 0-3,8-11; 1: CPUs 4-7,12-15"), "{said}");
}

#[test]
fn cpus_that_the_process_may_not_use_have_no_threads() {
    let machine = Machine::new("allowed", &TWO_NODES);
    machine.cpus(16, 2);
    machine.write("proc/self/status", "Name:\tx\nCpus_allowed_list:\t1-2,9,15");
    let topology = machine.topology();
    // 1 and 9 are one core.
    assert_eq!(topology.cores(), Some(3));
    assert_eq!(topology.deal(3).unwrap(), [1, 2, 15]);
    assert!(topology.describe().last().unwrap().ends_with("CPUs 1-2,9,15"));
}

#[test]
fn the_tightest_quota_is_rounded() {
    let machine = Machine::new("quota", &[("proc/self/cgroup", "0::/a/b")]);
    machine.cpus(8, 1);
    for (quota, cores) in
        [("150000 100000", 2), ("140000 100000", 1), ("10000 100000", 1), ("max 100000", 8)]
    {
        machine.write("sys/fs/cgroup/a/b/cpu.max", quota);
        assert_eq!(machine.topology().usable_cores(), Some(cores), "{quota}");
    }
    machine.write("sys/fs/cgroup/a/cpu.max", "250000 100000");
    assert_eq!(machine.topology().quota, Some(2.5));
    assert_eq!(machine.topology().usable_cores(), Some(3));
    assert!(machine.topology().describe().last().unwrap().contains("2.50 cores"));
}

#[test]
fn version_1_has_quotas_in_files_of_their_own() {
    let machine = Machine::new("quota1", &[("proc/self/cgroup", "4:cpu,cpuacct:/x\n3:memory:/x")]);
    machine.cpus(8, 1);
    machine.write("sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000");
    machine.write("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1");
    assert_eq!(machine.topology().quota, None);
    machine.write("sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "350000");
    assert_eq!(machine.topology().usable_cores(), Some(4));
}

#[test]
fn kinds_of_cores_and_caches_are_named() {
    let files = [
        ("sys/devices/cpu_core/cpus", "0-3"),
        ("sys/devices/cpu_atom/cpus", "4-7"),
        ("proc/cpuinfo", "processor\t: 0\nmodel name\t: A processor"),
    ];
    let machine = Machine::new("kinds", &files);
    machine.cpus(8, 1);
    for cpu in 0..8 {
        let cache = |index: usize, field: &str| {
            format!("sys/devices/system/cpu/cpu{cpu}/cache/index{index}/{field}")
        };
        machine.write(&cache(0, "level"), "1");
        machine.write(&cache(0, "type"), "Data");
        machine.write(&cache(0, "size"), "48K");
        machine.write(&cache(0, "shared_cpu_list"), &cpu.to_string());
        machine.write(&cache(1, "level"), "3");
        machine.write(&cache(1, "type"), "Unified");
        machine.write(&cache(1, "size"), "32M");
        machine.write(&cache(1, "shared_cpu_list"), if cpu < 4 { "0-3" } else { "4-7" });
    }
    let said = machine.topology().describe().join("\n");
    assert!(said.starts_with("processor: A processor\n"), "{said}");
    assert!(said.contains("kinds of cores: efficiency: 4 cores, performance: 4 cores"), "{said}");
    assert!(said.contains("caches: L1d 48K x 8, L3 32M x 2"), "{said}");
    // All of them compute: rows are shared out by who is done.
    assert_eq!(machine.topology().usable_cores(), Some(8));
}

#[test]
fn a_machine_that_says_nothing_has_no_cores() {
    let topology = Machine::new("nothing", &[]).topology();
    assert_eq!((topology.cores(), topology.usable_cores(), topology.deal(2)), (None, None, None));
}

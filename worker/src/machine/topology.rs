//! What the system says of this machine's processors: cores, their kinds, sockets, NUMA nodes and caches, and how much of
//! them this process may use. Only Linux tells.
//!
//! A NUMA node is a part of the machine with memory of its own. Its cores read this faster than the memory of other nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde::Serialize;

use super::cgroup::{Version, folders};
use super::cpu_list;

/// A hardware thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cpu {
    /// The system's number of it.
    pub number: usize,
    /// The processor that it is on.
    pub socket: usize,
    /// The hardware threads of its core, as a list.
    pub core: String,
    /// Its NUMA node.
    pub node: usize,
    /// The kind of its core, where a processor has several: `performance`, `efficiency`, or what it can do in 1024ths of the
    /// fastest.
    pub kind: String,
    /// Whether this process may run there.
    pub is_allowed: bool,
}

/// Caches of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Caches {
    /// As people call them: `L1d`, `L2`.
    pub name: String,
    /// The size of one, as the system writes it.
    pub size: String,
    /// How many there are.
    pub count: usize,
}

/// This machine's processors.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Topology {
    /// The processor's name.
    pub processor: String,
    /// All hardware threads that are online, by number.
    pub cpus: Vec<Cpu>,
    /// Caches, nearest to the core first.
    pub caches: Vec<Caches>,
    /// Cores' worth of time that the cgroup's quota gives this process; `None`: there is no quota.
    pub quota: Option<f64>,
}

impl Topology {
    /// That of the machine on which this process runs.
    pub fn of_this_machine() -> Self {
        Self::read(Path::new("/"))
    }

    /// What the files below `root` say. It is empty where there are none.
    pub fn read(root: &Path) -> Self {
        let system = root.join("sys/devices/system");
        let text = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let online = list(&text("sys/devices/system/cpu/online"));
        let allowed = text("proc/self/status")
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:").map(list));
        let nodes = nodes(&system.join("node"));
        let kinds = kinds(root);
        let cpu = |number: usize| {
            let folder = system.join(format!("cpu/cpu{number}"));
            let field = |name: &str| fs::read_to_string(folder.join(name)).ok();
            let siblings = ["topology/core_cpus_list", "topology/thread_siblings_list"];
            let core = siblings.into_iter().find_map(field).unwrap_or_else(|| number.to_string());
            let socket = field("topology/physical_package_id");
            let kind = kinds.get(&number).cloned().or_else(|| field("cpu_capacity"));
            Cpu {
                number,
                socket: socket.and_then(|n| n.trim().parse().ok()).unwrap_or(0),
                core: core.trim().to_owned(),
                node: nodes.get(&number).copied().unwrap_or(0),
                kind: kind.unwrap_or_default().trim().to_owned(),
                is_allowed: allowed.as_ref().is_none_or(|allowed| allowed.contains(&number)),
            }
        };
        let caches = online.first().map(|_| caches(&system.join("cpu"), &online));
        Self {
            processor: processor(&text("proc/cpuinfo")),
            cpus: online.iter().copied().map(cpu).collect(),
            caches: caches.unwrap_or_default(),
            quota: quota(&text("proc/self/cgroup"), &root.join("sys/fs/cgroup")),
        }
    }

    /// Hardware threads that this process may use.
    fn allowed(&self) -> impl Iterator<Item = &Cpu> {
        self.cpus.iter().filter(|cpu| cpu.is_allowed)
    }

    /// Cores that this process may use: each once, however many hardware threads it has. `None` where the system does not
    /// tell.
    pub fn cores(&self) -> Option<usize> {
        Some(count(self.allowed().map(|cpu| &cpu.core))).filter(|cores| *cores > 0)
    }

    /// Cores that are worth a thread each: those that this process may use, but no more than its quota, to the nearest whole
    /// number. `None` where the system does not tell.
    pub fn usable_cores(&self) -> Option<usize> {
        let whole = |quota: f64| (quota.round() as usize).max(1);
        Some(self.cores()?.min(self.quota.map_or(usize::MAX, whole)))
    }

    /// NUMA nodes on which this process may run.
    pub fn nodes(&self) -> Vec<usize> {
        let nodes: BTreeSet<usize> = self.allowed().map(|cpu| cpu.node).collect();
        nodes.into_iter().collect()
    }

    /// The node of a CPU, where the system knows that CPU.
    pub fn node_of(&self, number: usize) -> Option<usize> {
        self.cpus.iter().find(|cpu| cpu.number == number).map(|cpu| cpu.node)
    }

    /// A CPU for each of `threads` threads, node after node. Each node has as many as its share of the cores, and second
    /// hardware threads of cores come last. `None` where there are fewer CPUs than threads.
    pub fn deal(&self, threads: usize) -> Option<Vec<usize>> {
        let (cores, mut dealt) = (self.cores()?, Vec::with_capacity(threads));
        let mut cores_before = 0;
        for node in self.nodes() {
            let of_node = || self.allowed().filter(|cpu| cpu.node == node);
            let mut seen = BTreeSet::new();
            let (first, second): (Vec<&Cpu>, Vec<&Cpu>) =
                of_node().partition(|cpu| seen.insert(&cpu.core));
            cores_before += first.len();
            // Borders by whole cores before, so that the parts add up.
            let wanted = (threads * cores_before).div_ceil(cores) - dealt.len();
            let both = first.into_iter().chain(second);
            let own: Vec<usize> = both.take(wanted).map(|cpu| cpu.number).collect();
            if own.len() < wanted {
                return None;
            }
            dealt.extend(own);
        }
        // A core whose threads are in two nodes counts twice: no machine of metal has one.
        (dealt.len() == threads).then_some(dealt)
    }

    /// The machine in some lines, for people.
    pub fn describe(&self) -> Vec<String> {
        let sockets = count(self.cpus.iter().map(|cpu| cpu.socket));
        let cores = count(self.cpus.iter().map(|cpu| &cpu.core));
        let mut lines = vec![
            format!("processor: {}", self.processor),
            format!(
                "{}, {}, {}",
                several(sockets, "socket"),
                several(cores, "core"),
                several(self.cpus.len(), "hardware thread")
            ),
        ];
        let kinds: BTreeMap<&str, Vec<&Cpu>> = group(&self.cpus, |cpu| cpu.kind.as_str());
        if kinds.len() > 1 {
            let kinds = kinds.iter().map(|(kind, cpus)| {
                format!("{kind}: {}", several(count(cpus.iter().map(|cpu| &cpu.core)), "core"))
            });
            lines.push(format!("kinds of cores: {}", kinds.collect::<Vec<_>>().join(", ")));
        }
        let nodes = group(&self.cpus, |cpu| cpu.node).into_iter().map(|(node, cpus)| {
            let cpus: Vec<usize> = cpus.iter().map(|cpu| cpu.number).collect();
            format!("{node}: CPUs {}", cpu_list::ranges(&cpus))
        });
        lines.push(format!("NUMA nodes: {}", nodes.collect::<Vec<_>>().join("; ")));
        let caches = self.caches.iter().map(|c| format!("{} {} x {}", c.name, c.size, c.count));
        lines.push(format!("caches: {}", caches.collect::<Vec<_>>().join(", ")));
        let allowed: Vec<usize> = self.allowed().map(|cpu| cpu.number).collect();
        let quota =
            self.quota.map(|quota| format!(", time of {quota:.2} cores by the cgroup's quota"));
        lines.push(format!(
            "for this process: CPUs {}{}",
            cpu_list::ranges(&allowed),
            quota.unwrap_or_default()
        ));
        lines
    }
}

fn several(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn count<T: Ord>(items: impl Iterator<Item = T>) -> usize {
    items.collect::<BTreeSet<_>>().len()
}

fn group<'a, K: Ord>(cpus: &'a [Cpu], key: impl Fn(&'a Cpu) -> K) -> BTreeMap<K, Vec<&'a Cpu>> {
    let mut groups: BTreeMap<K, Vec<&Cpu>> = BTreeMap::new();
    cpus.iter().for_each(|cpu| groups.entry(key(cpu)).or_default().push(cpu));
    groups
}

/// CPUs of a list; none where the text is no list.
fn list(text: &str) -> Vec<usize> {
    cpu_list::parse(text.trim()).unwrap_or_default()
}

/// The name of the first processor.
fn processor(cpuinfo: &str) -> String {
    let field = |name: &str| {
        let found = cpuinfo.lines().find_map(|line| line.strip_prefix(name));
        found.map(|rest| rest.trim_start_matches([' ', '\t', ':']).trim().to_owned())
    };
    let part =
        || Some(format!("implementer {}, part {}", field("CPU implementer")?, field("CPU part")?));
    field("model name").or_else(part).unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// The node of each CPU.
fn nodes(folder: &Path) -> BTreeMap<usize, usize> {
    let numbers = list(&fs::read_to_string(folder.join("online")).unwrap_or_default());
    let of_node = |node: usize| {
        let cpus = fs::read_to_string(folder.join(format!("node{node}/cpulist")));
        list(&cpus.unwrap_or_default()).into_iter().map(move |cpu| (cpu, node))
    };
    numbers.into_iter().flat_map(of_node).collect()
}

/// The kinds of cores of Intel's processors that have two.
fn kinds(root: &Path) -> BTreeMap<usize, String> {
    let of_kind = |(folder, kind): (&str, &str)| {
        let path = root.join("sys/devices").join(folder).join("cpus");
        let cpus = list(&fs::read_to_string(path).unwrap_or_default());
        let kind = kind.to_owned();
        cpus.into_iter().map(move |cpu| (cpu, kind.clone())).collect::<Vec<_>>()
    };
    let kinds = [("cpu_core", "performance"), ("cpu_atom", "efficiency")];
    kinds.into_iter().flat_map(of_kind).collect()
}

/// The caches of these CPUs, each once.
fn caches(folder: &Path, cpus: &[usize]) -> Vec<Caches> {
    let mut all = BTreeSet::new();
    for cpu in cpus {
        for index in 0.. {
            let cache = folder.join(format!("cpu{cpu}/cache/index{index}"));
            let field = |name: &str| fs::read_to_string(cache.join(name)).ok();
            let Some(level) = field("level") else { break };
            let kind = match field("type").as_deref().map(str::trim) {
                Some("Data") => "d",
                Some("Instruction") => "i",
                _ => "",
            };
            let [size, shared] = ["size", "shared_cpu_list"].map(|n| field(n).unwrap_or_default());
            let name = format!("L{}{kind}", level.trim());
            all.insert((name, size.trim().to_owned(), shared));
        }
    }
    let mut found: Vec<Caches> = Vec::new();
    for (name, size, _) in all {
        match found.last_mut().filter(|last| last.name == name && last.size == size) {
            Some(last) => last.count += 1,
            None => found.push(Caches { name, size, count: 1 }),
        }
    }
    found
}

/// Cores' worth of time: the least quota of this process's cgroup and of those above it.
fn quota(cgroups: &str, root: &Path) -> Option<f64> {
    let of_folder = |folder: &Path, version: Version| {
        let number = |name: &str| -> Option<f64> {
            fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
        };
        let (quota, period) = match version {
            Version::Two => {
                let text = fs::read_to_string(folder.join("cpu.max")).ok()?;
                let (quota, period) = text.trim().split_once(' ')?;
                // "max" does not parse: no limit here.
                (quota.parse::<f64>().ok()?, period.parse::<f64>().ok()?)
            }
            Version::One => (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?),
        };
        // Version 1 says -1 where there is no limit.
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    };
    let quotas = folders(cgroups, root, "cpu").into_iter();
    quotas.filter_map(|(folder, version)| of_folder(&folder, version)).min_by(f64::total_cmp)
}

#[cfg(test)]
mod tests;

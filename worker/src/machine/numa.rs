//! Where threads and weights lie on a machine with several NUMA nodes, parts with memory of their own.
//!
//! Weights lie where the thread is that first writes them. Panels of a matrix are dealt out to threads by number when they are
//! packed, and in the same proportions when they are read. So it is enough to pin threads, node after node.

use std::collections::BTreeMap;
use std::fs;
use std::str::FromStr;

use super::topology::Topology;

/// `--numa`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Numa {
    /// With several nodes, threads are pinned and weights are placed where their threads are.
    #[default]
    Auto,
    /// Threads run where the system puts them, unless `--cpus` says where.
    Off,
}

impl Numa {
    /// How the option is typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Off => "off",
        }
    }
}

impl FromStr for Numa {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Auto, Self::Off];
        let found = all.into_iter().find(|numa| numa.name() == text);
        found.ok_or_else(|| format!("{text:?} is neither auto nor off"))
    }
}

/// Threads that have their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Places {
    /// The CPU of each thread.
    pub cpus: Vec<usize>,
    /// Threads on each node.
    pub threads: BTreeMap<usize, usize>,
    /// The last CPU of each node, in the order of threads.
    pub last_of_nodes: Vec<usize>,
}

impl Places {
    /// The places of `threads` threads, which are to run on `cpus`, or wherever this process may if there are none.
    ///
    /// # Errors
    /// Why threads and weights have no places of their own.
    pub fn of(
        numa: Numa,
        topology: &Topology,
        cpus: &[usize],
        threads: usize,
    ) -> Result<Self, String> {
        if numa == Numa::Off {
            return Err("--numa off".to_owned());
        }
        let nodes = topology.nodes();
        if nodes.len() < 2 {
            return Err("the memory is one NUMA node".to_owned());
        }
        let cpus: Vec<usize> = if !cpus.is_empty() {
            (0..threads).map(|thread| cpus[thread % cpus.len()]).collect()
        } else if topology.cores().is_some_and(|cores| threads >= cores) {
            let dealt = topology.deal(threads);
            dealt.ok_or_else(|| format!("{threads} threads are more than there are CPUs"))?
        } else {
            // Other workers of the machine would be pinned to the same.
            return Err(format!(
                "{threads} threads are not all cores, so they are not pinned: give --cpus"
            ));
        };
        let (mut threads, mut last) = (BTreeMap::new(), Vec::<(usize, usize)>::new());
        for cpu in &cpus {
            let node =
                topology.node_of(*cpu).ok_or_else(|| format!("CPU {cpu} has no NUMA node"))?;
            *threads.entry(node).or_default() += 1;
            last.retain(|(other, _)| *other != node);
            last.push((node, *cpu));
        }
        if threads.len() < 2 {
            return Err("all threads are on one NUMA node".to_owned());
        }
        let last_of_nodes = last.into_iter().map(|(_, cpu)| cpu).collect();
        Ok(Self { cpus, threads, last_of_nodes })
    }

    /// The nodes with their threads, for people: `node 0: 4 threads, node 1: 4 threads`.
    pub fn describe(&self) -> String {
        let nodes = self.threads.iter().map(|(node, n)| format!("node {node}: {n} threads"));
        nodes.collect::<Vec<_>>().join(", ")
    }

    /// Whether each node has its threads' share of these bytes, to a tenth of all.
    pub fn agree_with(&self, bytes: &BTreeMap<usize, u64>) -> bool {
        let (all, threads) = (bytes.values().sum::<u64>() as f64, self.cpus.len() as f64);
        let nodes = bytes.keys().chain(self.threads.keys());
        nodes
            .map(|node| {
                let own = bytes.get(node).copied().unwrap_or(0) as f64;
                own - all * self.threads.get(node).copied().unwrap_or(0) as f64 / threads
            })
            .all(|beyond| beyond.abs() <= all / 10.0)
    }
}

/// Bytes of this process's own memory on each node, without files; `None` where the system does not tell.
pub fn bytes_by_node() -> Option<BTreeMap<usize, u64>> {
    fs::read_to_string("/proc/self/numa_maps").ok().map(|maps| of_maps(&maps))
}

/// What came to each node since `before`.
pub fn since(before: &BTreeMap<usize, u64>, now: &BTreeMap<usize, u64>) -> BTreeMap<usize, u64> {
    let more =
        |node: &usize, bytes: &u64| bytes.saturating_sub(before.get(node).copied().unwrap_or(0));
    now.iter().map(|(node, bytes)| (*node, more(node, bytes))).collect()
}

/// Bytes on nodes, for people: `node 0: 310 MB, node 1: 305 MB`.
pub fn describe(bytes: &BTreeMap<usize, u64>) -> String {
    let nodes = bytes.iter().map(|(node, b)| format!("node {node}: {:.0} MB", *b as f64 / 1e6));
    nodes.collect::<Vec<_>>().join(", ")
}

/// What the text of a process's `numa_maps` says.
fn of_maps(maps: &str) -> BTreeMap<usize, u64> {
    let mut bytes = BTreeMap::new();
    for line in maps.lines().filter(|line| !line.contains(" file=")) {
        let fields = || line.split(' ').filter_map(|field| field.split_once('='));
        let page = fields().find(|(name, _)| *name == "kernelpagesize_kB");
        let Some(kib) = page.and_then(|(_, kib)| kib.parse::<u64>().ok()) else { continue };
        for (name, pages) in fields() {
            let node = name.strip_prefix('N').and_then(|node| node.parse::<usize>().ok());
            if let (Some(node), Ok(pages)) = (node, pages.parse::<u64>()) {
                *bytes.entry(node).or_insert(0) += pages.saturating_mul(kib << 10);
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::topology::Cpu;

    /// Two nodes of four cores each.
    fn machine(n_nodes: usize) -> Topology {
        let cpu = |number: usize| Cpu {
            number,
            socket: 0,
            core: number.to_string(),
            node: number / 4,
            kind: String::new(),
            is_allowed: true,
        };
        Topology { cpus: (0..4 * n_nodes).map(cpu).collect(), ..Topology::default() }
    }

    fn places(cpus: &[usize], threads: usize) -> Result<Places, String> {
        Places::of(Numa::Auto, &machine(2), cpus, threads)
    }

    #[test]
    fn all_cores_or_named_cpus_on_two_nodes_are_places() {
        let all = places(&[], 8).unwrap();
        assert_eq!(all.cpus, [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(all.describe(), "node 0: 4 threads, node 1: 4 threads");
        assert_eq!(places(&[2, 3, 4], 6).unwrap().cpus, [2, 3, 4, 2, 3, 4]);
        let why = |found: Result<Places, String>| found.unwrap_err();
        assert!(why(places(&[], 4)).contains("give --cpus"));
        assert!(why(places(&[], 9)).contains("more than there are CPUs"));
        assert!(why(places(&[0, 1], 2)).contains("on one NUMA node"));
        assert!(why(places(&[0, 99], 2)).contains("CPU 99"));
        assert!(why(Places::of(Numa::Auto, &machine(1), &[], 4)).contains("is one NUMA node"));
        assert_eq!(why(Places::of(Numa::Off, &machine(2), &[], 8)), "--numa off");
    }

    #[test]
    fn bytes_of_a_process_are_read_by_node() {
        let maps = "55d0 default file=/usr/bin/x mapped=7 N0=7 kernelpagesize_kB=4\n\
            7f00 default anon=600 dirty=600 N0=500 N1=100 kernelpagesize_kB=4\n\
            7f10 default heap anon=2 N1=2 kernelpagesize_kB=2048\n\
            7fff default stack\n";
        let bytes = of_maps(maps);
        assert_eq!(bytes, BTreeMap::from([(0, 500 << 12), (1, (100 << 12) + (4 << 20))]));
        let before = BTreeMap::from([(0, 100 << 12)]);
        assert_eq!(since(&before, &bytes)[&0], 400 << 12);
        assert_eq!(describe(&bytes), "node 0: 2 MB, node 1: 5 MB");
    }

    #[test]
    fn bytes_agree_with_threads_to_a_tenth() {
        let all = places(&[], 8).unwrap();
        let agree = |a, b| all.agree_with(&BTreeMap::from([(0, a), (1, b)]));
        assert!(agree(500, 500) && agree(450, 550) && !agree(700, 300));
        assert!(!all.agree_with(&BTreeMap::from([(0, 1000)])));
    }

    #[test]
    fn the_option_has_two_values() {
        assert_eq!(("auto".parse(), "off".parse()), (Ok(Numa::Auto), Ok(Numa::Off)));
        assert!("on".parse::<Numa>().unwrap_err().contains("neither"));
    }
}

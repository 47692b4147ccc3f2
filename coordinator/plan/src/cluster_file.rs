//! Reads the file of `plan --cluster FILE.toml`, which describes workers that need not exist yet.
//!
//! ```toml
//! [[worker]]
//! name = "big"            # optional: "worker 0"
//! memory = "64G"
//! gbps = 80.0             # memory read, 10^9 bytes a second
//! gops = 2000.0           # matrix multiplication, 10^9 operations a second
//! link = { gbps = 1.2, latency_us = 150.0 }   # optional: to the next worker
//! count = 3               # optional: as many equal ones
//! stages = 2              # optional: a node with so many stages, which share its memory
//! cache_limit = "100G"    # optional: --cache-limit of a worker that is sent its weights, for all its stages
//! # optional: of a worker on a GPU, the host for routed experts: what does not fit on the GPU, all, or those of so many layers
//! host = { memory = "128G", gbps = 60.0, gops = 1500.0, experts = "auto" }
//! ```

use serde::Deserialize;

use super::MAX_WORKERS;
use super::facts::{DiskFacts, HostExperts, HostFacts, LinkFacts, NodeFacts, WorkerFacts};
use super::units::parse_bytes;

/// An error in a cluster file.
#[derive(Debug, thiserror::Error)]
pub enum ClusterFileError {
    /// The file is not TOML of the documented shape.
    #[error("cluster file: {0}")]
    Toml(#[from] toml::de::Error),
    /// A worker's field cannot be.
    #[error("cluster file: worker {worker}: {problem}")]
    Worker {
        /// The worker's name.
        worker: String,
        /// The problem, in words.
        problem: String,
    },
    /// The file has no worker, or too many.
    #[error("cluster file: {0} workers; there must be 1 to {MAX_WORKERS}")]
    Count(usize),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    worker: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: Option<String>,
    memory: Size,
    gbps: f64,
    gops: f64,
    link: Option<Link>,
    count: Option<usize>,
    stages: Option<usize>,
    cache_limit: Option<Size>,
    host: Option<Host>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Host {
    memory: Size,
    gbps: f64,
    gops: f64,
    sent: Option<f64>,
    #[serde(default)]
    sent_beside: bool,
    experts: Option<Experts>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Experts {
    Layers(u32),
    Text(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    gbps: f64,
    #[serde(default)]
    latency_us: f64,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Size {
    Bytes(u64),
    Text(String),
}

/// Workers from the text of a cluster file.
///
/// # Errors
/// The text is not TOML of the documented shape; the message names place and field.
pub fn parse_cluster_file(text: &str) -> Result<Vec<WorkerFacts>, ClusterFileError> {
    let file: File = toml::from_str(text)?;
    let mut workers = Vec::new();
    for entry in file.worker {
        let count = entry.count.unwrap_or(1);
        let stages = entry.stages.unwrap_or(1);
        let all = workers.len().saturating_add(count.saturating_mul(stages));
        if all > MAX_WORKERS {
            return Err(ClusterFileError::Count(all));
        }
        for _ in 0..count {
            let worker = entry.facts(workers.len())?;
            match stages {
                1 => workers.push(worker),
                _ => workers.extend(stages_of(&worker, workers.len(), stages)),
            }
        }
    }
    if workers.is_empty() { Err(ClusterFileError::Count(0)) } else { Ok(workers) }
}

/// The stages of a node: `lab.1` and so on. Each has an equal part, and may have all that the others leave.
fn stages_of(node: &WorkerFacts, first: usize, stages: usize) -> impl Iterator<Item = WorkerFacts> {
    let host = node.host.and_then(|host| host.memory);
    let (limit, left) = (node.memory, node.memory);
    let facts = NodeFacts { node: first as u64, limit, left, host_left: host.unwrap_or(0) };
    let each = stages as u64;
    (1..=stages).map(move |number| WorkerFacts {
        name: format!("{}.{number}", node.name),
        memory: facts.left / each,
        host: node.host.map(|h| HostFacts { memory: host.map(|bytes| bytes / each), ..h }),
        node: Some(facts),
        ..node.clone()
    })
}

impl Entry {
    fn facts(&self, index: usize) -> Result<WorkerFacts, ClusterFileError> {
        let name = match (&self.name, self.count) {
            (None, _) => format!("worker {index}"),
            (Some(name), None | Some(1)) => name.clone(),
            (Some(name), Some(_)) => format!("{name} {index}"),
        };
        let fail = |problem: String| ClusterFileError::Worker { worker: name.clone(), problem };
        let bytes = |what: &str, size: &Size| match size {
            Size::Bytes(bytes) => Ok(*bytes),
            Size::Text(text) => parse_bytes(text).map_err(|e| fail(format!("{what}: {e}"))),
        };
        let memory = bytes("memory", &self.memory)?;
        if self.stages == Some(0) {
            return Err(fail("it has 0 stages, and must have one at least".to_owned()));
        }
        let positive = |what: &str, value: f64| {
            let good = value.is_finite() && value > 0.0;
            if good { Ok(value) } else { Err(fail(format!("{what} is {value}, not above 0"))) }
        };
        let link = match &self.link {
            None => None,
            Some(link) if link.latency_us >= 0.0 && link.latency_us.is_finite() => {
                Some(LinkFacts {
                    gbps: positive("link.gbps", link.gbps)?,
                    latency_us: link.latency_us,
                })
            }
            Some(link) => return Err(fail(format!("link.latency_us is {}", link.latency_us))),
        };
        let (gbps, gops) = (positive("gbps", self.gbps)?, positive("gops", self.gops)?);
        let host = match &self.host {
            None => None,
            Some(host) => Some(HostFacts {
                memory: Some(bytes("host.memory", &host.memory)?),
                gbps: positive("host.gbps", host.gbps)?,
                gops: positive("host.gops", host.gops)?,
                sent_gbps: match host.sent {
                    None => 0.0,
                    Some(sent) => positive("host.sent", sent)?,
                },
                sent_beside: host.sent_beside,
                experts: match &host.experts {
                    None => HostExperts::Auto,
                    Some(Experts::Layers(n)) => HostExperts::Layers(*n),
                    Some(Experts::Text(text)) => match text.as_str() {
                        "auto" => HostExperts::Auto,
                        "host" => HostExperts::All,
                        other => {
                            let why = "is not auto, host, or a number of layers";
                            return Err(fail(format!("host.experts: {other:?} {why}")));
                        }
                    },
                },
            }),
        };
        let disk = match &self.cache_limit {
            None => None,
            Some(limit) => {
                let limit = bytes("cache_limit", limit)?;
                Some(DiskFacts { folder: index as u64, limit, left: limit })
            }
        };
        let (name, holds, node) = (name.clone(), 0..0, None);
        Ok(WorkerFacts { name, memory, gbps, gops, link, host, holds, node, disk })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_file() {
        let text = r#"
            [[worker]]
            name = "big"
            memory = "64G"
            gbps = 80
            gops = 2000.0
            link = { gbps = 1.2, latency_us = 150 }
            [[worker]]
            memory = 1073741824
            gbps = 20.5
            gops = 400.0
            count = 2
        "#;
        let workers = parse_cluster_file(text).unwrap();
        let names: Vec<_> = workers.iter().map(|w| w.name.as_str()).collect();
        assert_eq!(names, ["big", "worker 1", "worker 2"]);
        assert_eq!((workers[0].memory, workers[2].memory), (64 << 30, 1 << 30));
        assert_eq!(workers[0].link, Some(LinkFacts { gbps: 1.2, latency_us: 150.0 }));
        assert_eq!(workers[1].gbps, 20.5);
    }

    #[test]
    fn stages_of_a_node_share_its_memory() {
        let text = "[[worker]]\nname = \"lab\"\nmemory = \"48G\"\ngbps = 8\ngops = 9\nstages = 3\n\
                    [[worker]]\nmemory = \"8G\"\ngbps = 8\ngops = 9";
        let workers = parse_cluster_file(text).unwrap();
        let names: Vec<_> = workers.iter().map(|w| w.name.as_str()).collect();
        assert_eq!(names, ["lab.1", "lab.2", "lab.3", "worker 3"]);
        assert_eq!((workers[1].memory, workers[1].node.unwrap().left), (16 << 30, 48 << 30));
        assert_eq!(workers[0].node, workers[2].node);
        assert_eq!(workers[3].node, None);
    }

    #[test]
    fn stages_of_a_node_share_its_cache() {
        let text = "[[worker]]\nmemory = \"48G\"\ngbps = 8\ngops = 9\nstages = 2\ncache_limit = \"9G\"\n\
                    [[worker]]\nmemory = \"8G\"\ngbps = 8\ngops = 9\ncache_limit = 7\n\
                    [[worker]]\nmemory = \"8G\"\ngbps = 8\ngops = 9";
        let disks = parse_cluster_file(text).unwrap().into_iter().map(|worker| worker.disk);
        let of = |folder, limit| Some(DiskFacts { folder, limit, left: limit });
        assert_eq!(disks.collect::<Vec<_>>(), [of(0, 9 << 30), of(0, 9 << 30), of(2, 7), None]);
    }

    #[test]
    fn mistakes_are_named() {
        let worker = |rest: &str| format!("[[worker]]\nname = \"w\"\n{rest}");
        for (text, says) in [
            (String::new(), "0 workers"),
            (worker("memory = \"1G\"\ngbps = 1.0"), "gops"),
            (worker("memory = \"1X\"\ngbps = 1.0\ngops = 1.0"), "memory: \"1X\""),
            (worker("memory = 1\ngbps = 1.0\ngops = 1.0\ncache_limit = \"x\""), "cache_limit"),
            (worker("memory = 1\ngbps = 0.0\ngops = 1.0"), "gbps is 0"),
            (worker("memory = 1\ngbps = 1.0\ngops = nan"), "gops is NaN"),
            (worker("memory = 1\ngbps = 1.0\ngops = 1.0\ncount = 300"), "300 workers"),
            (worker("memory = 1\ngbps = 1.0\ngops = 1.0\ncount = 150\nstages = 2"), "300 workers"),
            (worker("memory = 1\ngbps = 1.0\ngops = 1.0\nstages = 0"), "0 stages"),
            (worker("memory = 1\ngbps = 1.0\ngops = 1.0\nlayers = 3"), "layers"),
        ] {
            let error = parse_cluster_file(&text).unwrap_err().to_string();
            assert!(error.contains(says), "{error} does not say {says}");
        }
    }
}

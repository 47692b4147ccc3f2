//! Reads the file of `plan --cluster FILE.toml`, which describes workers that need not exist yet.
//!
//! ```toml
//! [[worker]]
//! name = "big"            # optional: "worker 0"
//! memory = "64G"
//! gbps = 80.0             # memory read, 10^9 bytes a second
//! gops = 2000.0           # matrix multiplication, 10^9 operations a second
//! products = { q6_k = 1900.0, q8_0 = 2100.0, f16 = 500.0 }    # optional: the same where weights are of such types
//! link = { gbps = 1.2, latency_us = 150.0 }   # optional: to the next worker
//! count = 3               # optional: as many equal ones
//! stages = 2              # optional: a node with so many stages, which share its memory
//! cache_limit = "100G"    # optional: --cache-limit of a worker that is sent its weights, for all its stages
//! # optional: of a worker on a GPU, the host for routed experts: what does not fit on the GPU, all, or those of so many layers
//! host = { memory = "128G", gbps = 60.0, gops = 1500.0, experts = "auto" }
//! ```

use brigade_worker::backend::product_class::ByClass;
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
    products: Option<Products>,
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
    products: Option<Products>,
    sent: Option<f64>,
    #[serde(default)]
    sent_beside: bool,
    experts: Option<Experts>,
}

/// Speeds of classes of products that differ from `gops`, each by the type that a worker measures for it.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Products {
    q6_k: Option<f64>,
    q8_0: Option<f64>,
    f16: Option<f64>,
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

/// The entry of one worker, whose name mistakes are told with.
struct Named<'a> {
    worker: &'a str,
}

impl Named<'_> {
    fn fail(&self, problem: String) -> ClusterFileError {
        ClusterFileError::Worker { worker: self.worker.to_owned(), problem }
    }

    fn bytes(&self, what: &str, size: &Size) -> Result<u64, ClusterFileError> {
        match size {
            Size::Bytes(bytes) => Ok(*bytes),
            Size::Text(text) => parse_bytes(text).map_err(|e| self.fail(format!("{what}: {e}"))),
        }
    }

    fn positive(&self, what: &str, value: f64) -> Result<f64, ClusterFileError> {
        let good = value.is_finite() && value > 0.0;
        if good { Ok(value) } else { Err(self.fail(format!("{what} is {value}, not above 0"))) }
    }

    /// The speeds of products `of` a worker or of its host (`host.`).
    fn gops(
        &self,
        of: &str,
        gops: f64,
        products: Option<Products>,
    ) -> Result<ByClass<f64>, ClusterFileError> {
        let nibble = self.positive(&format!("{of}gops"), gops)?;
        let Products { q6_k, q8_0, f16 } = products.unwrap_or_default();
        let class = |ty: &str, speed: Option<f64>| {
            self.positive(&format!("{of}products.{ty}"), speed.unwrap_or(gops))
        };
        let (halves, byte, float) =
            (class("q6_k", q6_k)?, class("q8_0", q8_0)?, class("f16", f16)?);
        Ok(ByClass { nibble, halves, byte, float })
    }

    fn link(&self, link: &Link) -> Result<LinkFacts, ClusterFileError> {
        let latency_us = link.latency_us;
        if !(latency_us >= 0.0 && latency_us.is_finite()) {
            return Err(self.fail(format!("link.latency_us is {latency_us}")));
        }
        Ok(LinkFacts { gbps: self.positive("link.gbps", link.gbps)?, latency_us })
    }

    fn host(&self, host: &Host) -> Result<HostFacts, ClusterFileError> {
        Ok(HostFacts {
            memory: Some(self.bytes("host.memory", &host.memory)?),
            gbps: self.positive("host.gbps", host.gbps)?,
            gops: self.gops("host.", host.gops, host.products)?,
            sent_gbps: match host.sent {
                None => 0.0,
                Some(sent) => self.positive("host.sent", sent)?,
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
                        return Err(self.fail(format!("host.experts: {other:?} {why}")));
                    }
                },
            },
        })
    }
}

impl Entry {
    fn facts(&self, index: usize) -> Result<WorkerFacts, ClusterFileError> {
        let name = match (&self.name, self.count) {
            (None, _) => format!("worker {index}"),
            (Some(name), None | Some(1)) => name.clone(),
            (Some(name), Some(_)) => format!("{name} {index}"),
        };
        let named = Named { worker: &name };
        let memory = named.bytes("memory", &self.memory)?;
        if self.stages == Some(0) {
            return Err(named.fail("it has 0 stages, and must have one at least".to_owned()));
        }
        let link = self.link.as_ref().map(|link| named.link(link)).transpose()?;
        let gbps = named.positive("gbps", self.gbps)?;
        let gops = named.gops("", self.gops, self.products)?;
        let host = self.host.as_ref().map(|host| named.host(host)).transpose()?;
        let limit = self.cache_limit.as_ref().map(|limit| named.bytes("cache_limit", limit));
        let disk = limit.transpose()?;
        let disk = disk.map(|limit| DiskFacts { folder: index as u64, limit, left: limit });
        let (holds, node) = (0..0, None);
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
    fn classes_of_products_have_the_speed_of_all_unless_they_are_said() {
        let text = "[[worker]]\nmemory = \"1G\"\ngbps = 8\ngops = 900\n\
                    products = { q8_0 = 700, f16 = 250 }\n\
                    host = { memory = \"2G\", gbps = 6, gops = 80, products = { q6_k = 50 } }";
        let worker = parse_cluster_file(text).unwrap().remove(0);
        assert_eq!(worker.gops.values(), [900.0, 900.0, 700.0, 250.0]);
        assert_eq!(worker.host.unwrap().gops.values(), [80.0, 50.0, 80.0, 80.0]);
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
            (
                worker("memory = 1\ngbps = 1.0\ngops = 1.0\nproducts = { f16 = -1.0 }"),
                "products.f16 is -1",
            ),
            (worker("memory = 1\ngbps = 1.0\ngops = 1.0\nproducts = { q4_0 = 1.0 }"), "q4_0"),
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

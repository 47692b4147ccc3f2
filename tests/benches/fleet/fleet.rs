//! A cluster of nodes with several models, and what its processes take of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use brigade_model_tests::golden::Encoders;
use brigade_tests::process::{Running, Server, brigade, children_of, get, run, synth};
use brigade_tests::secure::{Cluster, READY};
use brigade_tests::up_share::free_address;
use serde_json::{Value, json};

use crate::Options;

/// How long anything may take before the run is given up.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// The beginning of the coordinator's ready line.
const SERVING: &str = "brigade serve listening on ";

/// How often the memory of a node's processes is read.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A model of the server.
pub struct Model {
    pub name: &'static str,
    /// `None`: the demo.
    pub file: Option<PathBuf>,
    /// Whether it makes vectors, and no text.
    pub is_encoder: bool,
}

impl Model {
    /// The five models that are asked for.
    pub fn five(size: &str) -> Vec<Self> {
        let of = |name| Self { name, file: Some(synth(name, size)), is_encoder: false };
        let encoder = Encoders::repository().models["bert"].synth.make();
        let mut all: Vec<Self> = ["llama", "granitehybrid"].map(of).into();
        let moe = synth("qwen3moe", "tiny-moe");
        all.push(Self { name: "qwen3moe", file: Some(moe), is_encoder: false });
        all.push(Self { name: "bert", file: Some(encoder), is_encoder: true });
        all.push(Self { name: "demo", file: None, is_encoder: false });
        all
    }

    /// A model by two names: two lines of the same weights.
    pub fn twins(size: &str) -> Vec<Self> {
        let of = |name| Self { name, file: Some(synth("llama", size)), is_encoder: false };
        ["first", "second"].map(of).into()
    }

    /// The address and the body of request number `i` to it.
    pub fn request(&self, i: usize, tokens: usize) -> (&'static str, Value) {
        let text = format!("On day {i} it came to pass that");
        if self.is_encoder {
            return ("/v1/embeddings", json!({ "model": self.name, "input": text }));
        }
        let body = json!({
            "model": self.name, "prompt": text, "max_tokens": tokens, "seed": i, "temperature": 0.9, "ignore_eos": true,
        });
        ("/v1/completions", body)
    }

    /// What of an answer depends on the model and the request alone.
    pub fn content(&self, answer: &Value) -> Value {
        if self.is_encoder { answer["data"].clone() } else { answer["choices"].clone() }
    }
}

/// A coordinator, its nodes and their models.
pub struct Fleet {
    pub cluster: Cluster,
    pub server: Option<Server>,
    pub nodes: Vec<Running>,
    config: String,
    /// Where it listens, over restarts.
    listen: String,
    /// How often it was started: each has a log.
    logs: usize,
    models: Vec<PathBuf>,
}

impl Fleet {
    /// `each`: options of each model, as lines of its table.
    pub fn start(options: &Options, models: &[Model], each: &str) -> Self {
        let cluster = Cluster::new();
        let mut text = "version = 1\n".to_owned();
        for Model { name, file, .. } in models {
            text += &format!("[[model]]\nname = \"{name}\"\n{each}\n");
            if let Some(file) = file {
                text += &format!("model = \"{}\"\n", file.display());
            }
        }
        let config = cluster.dir.join("brigade.toml");
        fs::write(&config, text).unwrap();
        let config = config.to_str().unwrap().to_owned();
        let files = models.iter().filter_map(|model| model.file.clone()).collect();
        let (listen, server) = (free_address(), None);
        let mut fleet =
            Self { cluster, server, nodes: Vec::new(), config, listen, logs: 0, models: files };
        fleet.serve();
        for n in 0..options.nodes {
            let cgroup = options.cgroup.as_deref().filter(|_| n == 0);
            let node = fleet.node(n, options, cgroup);
            fleet.nodes.push(node);
        }
        fleet
    }

    /// Starts the coordinator, for the first time or again.
    pub fn serve(&mut self) {
        let (data, log) = (self.cluster.data("desk"), self.log(self.logs));
        self.logs += 1;
        let args = ["serve", "--listen", &self.listen, "--control", &self.cluster.control];
        let more = ["--data-dir", &data, "--config", &self.config];
        let process = Running::start_logged(&[&args[..], &more].concat(), SERVING, &log);
        self.server = Some(Server { process });
    }

    /// The log of the coordinator's start number `n`.
    fn log(&self, n: usize) -> PathBuf {
        self.cluster.dir.join(format!("desk-{n}.log"))
    }

    /// All lines of the coordinator's logs.
    fn logged(&self) -> String {
        (0..self.logs).filter_map(|n| fs::read_to_string(self.log(n)).ok()).collect()
    }

    /// Bytes of weights that were sent to workers, or that workers have read.
    pub fn weights_moved(&self) -> u64 {
        let of = |line: &str, field: &str| {
            let (_, value) = line.split_once(field)?;
            let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
            value[..end].parse::<u64>().ok()
        };
        let text = self.logged();
        let each =
            |field: &'static str| text.lines().filter_map(move |line| of(line, field)).sum::<u64>();
        each(" pushed_bytes=") + each(" read_bytes=")
    }

    /// How often the log says that a worker is slow or stuck, or that a line changes.
    pub fn changes(&self) -> usize {
        let text = self.logged();
        let words = ["slowdown", "stuck", "the line changes"];
        text.lines().filter(|line| words.iter().any(|word| line.contains(word))).count()
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().unwrap()
    }

    /// Starts node number `n`.
    pub fn node(&self, n: usize, options: &Options, cgroup: Option<&Path>) -> Running {
        let stages = options.stages.to_string();
        let more = ["--memory", &options.memory, "--speed", "20,200", "--stages", &stages];
        let more = if options.stages > 1 { &more[..] } else { &more[..4] };
        let name = format!("node{n}");
        let token = self.cluster.token(&["--uses", "9"]);
        let args = self.cluster.worker_args(&name, Some(&token), more);
        let mut command = match cgroup {
            None => Command::new(brigade()),
            Some(group) => {
                let mut shell = Command::new("sh");
                let join =
                    format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", group.display());
                shell.args(["-c", &join]).arg(brigade());
                shell
            }
        };
        command.args(args).env("RUST_LOG", "warn");
        Running::spawn(command, READY)
    }

    /// The workers of a model's line.
    pub fn line(&self, model: &str) -> Vec<String> {
        self.server().line_workers(model)
    }

    /// Waits until a model takes requests.
    pub fn wait_for(&self, model: &str) {
        let url = self.server().url(&format!("/health?model={model}"));
        wait(model, || get(&url).is_ok_and(|reply| reply.status == 200));
    }

    /// The value of a metric, summed over all its series.
    pub fn sum(&self, metric: &str) -> f64 {
        let text = get(&self.server().admin("/metrics")).unwrap().body;
        let of = |line: &str| line.strip_prefix(metric)?.rsplit(' ').next()?.parse::<f64>().ok();
        text.lines().filter_map(of).sum()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.models.iter().for_each(|model| drop(fs::remove_file(model)));
    }
}

/// Waits until something is so.
pub fn wait(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The answer of a line of the model's own to a request.
pub fn alone(models: &[Model], asked: impl Fn(&Model, &Server) -> Vec<Value>) -> Vec<Vec<Value>> {
    let of = |model: &Model| {
        let file = model.file.as_ref().map(|file| ["-m", file.to_str().unwrap()]);
        let args = file.iter().flatten().copied().chain(["--workers", "1", "--alias", model.name]);
        asked(model, &Server::start(&args.collect::<Vec<_>>()))
    };
    models.iter().map(of).collect()
}

/// A process and all below it.
pub fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut at = 0;
    while let Some(&pid) = all.get(at) {
        all.extend(children_of(pid));
        at += 1;
    }
    all
}

/// Bytes of memory that processes have, shared pages divided among those that share them.
pub fn pss(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?.trim().to_owned();
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    pids.iter().filter_map(of).sum::<u64>() << 10
}

/// Watches the memory of nodes until it is stopped.
pub struct Watched {
    stop: Arc<AtomicBool>,
    most: Vec<Arc<AtomicU64>>,
    threads: Vec<JoinHandle<()>>,
}

impl Watched {
    pub fn new(nodes: &[Running]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let most: Vec<Arc<AtomicU64>> = nodes.iter().map(|_| Arc::default()).collect();
        let watch = |(node, most): (&Running, &Arc<AtomicU64>)| {
            let (pid, stop, most) = (node.pid(), stop.clone(), most.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    most.fetch_max(pss(&tree(pid)), Ordering::Relaxed);
                    std::thread::sleep(LOOK_EVERY);
                }
            })
        };
        let threads = nodes.iter().zip(&most).map(watch).collect();
        Self { stop, most, threads }
    }

    /// The most MiB that each node had.
    pub fn end(self) -> Vec<u64> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.most.iter().map(|most| most.load(Ordering::Relaxed) >> 20).collect()
    }
}

/// Runs `brigade ARGS` of the coordinator's folder; true if it succeeds.
pub fn order(cluster: &Cluster, args: &[&str]) -> bool {
    let data = cluster.data("desk");
    run(&[args, &["--data-dir", &data]].concat()).status.success()
}

/// The value below which a share of some values lies.
pub fn quantile(values: &[Duration], share: f64) -> Duration {
    let mut values = values.to_vec();
    values.sort_unstable();
    let at = (values.len().saturating_sub(1) as f64 * share).round() as usize;
    values.get(at).copied().unwrap_or_default()
}

/// Numbers without a pattern (splitmix64).
pub fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33
    }
}

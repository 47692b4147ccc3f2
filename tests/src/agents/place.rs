//! Servers for replays: started, watched, killed and started again.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::process::{Running, brigade, get, own_memory, run};
use crate::up_share::first_of_free_ports;

/// How long a server may take until it answers.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// Positions of a page.
const PAGE: u64 = 64;

/// The memory that a server may use for kept states.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Positions of running and kept sequences together.
    pub positions: u64,
    /// The number of kept states.
    pub places: u64,
}

/// A server of ours on this machine, or several one after the other.
pub struct Ours {
    dir: PathBuf,
    model: PathBuf,
    /// Options that bound its memory.
    room: Vec<String>,
    disk: Option<String>,
    server: Option<Running>,
    /// A brigade server of a replay, which is started and killed.
    pub seen: Seen,
}

/// Measurements of a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Rows that were computed, drawn tokens included.
    pub rows: u64,
    /// Most bytes that a worker had in memory, and what the plan gives that worker.
    pub worker: (u64, u64),
    /// Most bytes on the disk.
    pub disk: u64,
    /// Pages of the line.
    pub pages: u64,
}

#[derive(Deserialize)]
struct Plan {
    stages: Vec<Stage>,
    capacity: Capacity,
    sequence: Sequence,
}

#[derive(Deserialize)]
struct Sequence {
    kv_bytes_per_token: u64,
    window_bytes: u64,
    conv_bytes: u64,
    scan_bytes: u64,
}

#[derive(Deserialize)]
struct Stage {
    memory: std::collections::BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct Capacity {
    n_blocks: u64,
    n_kept: u64,
}

impl Budget {
    /// The options for this budget. There are as many pages as the sequences that may run at once need together. So
    /// their number and their length set it: each may have `context` positions.
    fn options(self, context: u32) -> Result<Vec<String>, String> {
        let seqs = self.positions / u64::from(context);
        if seqs == 0 {
            let Self { positions, .. } = self;
            return Err(format!(
                "{positions} positions do not hold one request: {context} are needed"
            ));
        }
        let ctx = self.positions / seqs / PAGE * PAGE;
        let numbers = [("--ctx", ctx), ("--max-seqs", seqs), ("--keep", self.places)];
        Ok(numbers.iter().flat_map(|(name, n)| [(*name).into(), n.to_string()]).collect())
    }
}

fn plan(args: &[&str]) -> Result<Plan, String> {
    let planned = run(&[&["plan", "--json"], args].concat());
    let said = |_| String::from_utf8_lossy(&planned.stderr).into_owned();
    serde_json::from_slice(&planned.stdout).map_err(said)
}

/// Bytes of what a budget keeps of a model, and of one position.
///
/// # Errors
/// If the plan cannot be had.
pub fn bytes_kept(model: &Path, budget: Budget) -> Result<(u64, u64), String> {
    let model = model.to_str().ok_or("the model's path is no text")?;
    let Sequence { kv_bytes_per_token, window_bytes, conv_bytes, scan_bytes } =
        plan(&["-m", model])?.sequence;
    let state = window_bytes + conv_bytes + scan_bytes;
    Ok((budget.positions * kv_bytes_per_token + budget.places * state, kv_bytes_per_token))
}

impl Ours {
    /// A server that is not started yet. `disk`: the limit of records on each worker's disk.
    ///
    /// # Errors
    /// If the budget does not hold one request.
    pub fn new(
        model: &Path,
        budget: Budget,
        context: u32,
        disk: Option<&str>,
    ) -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("brigade-prefixes-{}", std::process::id()));
        // Of a bench that was killed, with the same process id.
        let _ = std::fs::remove_dir_all(&dir);
        let (room, disk) = (budget.options(context)?, disk.map(str::to_owned));
        let (model, server, seen) = (model.to_owned(), None, Seen::default());
        Ok(Self { dir, model, room, disk, server, seen })
    }

    /// Starts it with as many workers as the cuts make; what ran before is killed.
    ///
    /// # Errors
    /// If the plan cannot be had.
    ///
    /// # Panics
    /// If the line does not come up.
    pub fn start(&mut self, cuts: &str) -> Result<(), String> {
        self.end();
        let workers = (cuts.split(',').count() + 1).to_string();
        let model = self.model.to_str().ok_or("the model's path is no text")?;
        let mut args = vec!["-m", model, "--workers", &workers, "--cuts", cuts];
        args.extend(self.room.iter().map(String::as_str));
        let plan = plan(&args)?;
        let most = plan.stages.iter().map(|stage| stage.memory.values().sum()).max().unwrap_or(0);
        (self.seen.worker.1, self.seen.pages) =
            (self.seen.worker.1.max(most), plan.capacity.n_blocks);
        let wished: u64 = self.room.last().and_then(|n| n.parse().ok()).unwrap_or(0);
        if plan.capacity.n_kept != wished {
            return Err(format!("{} states are kept and not {wished}", plan.capacity.n_kept));
        }
        let mut command = Command::new(brigade());
        command.args(["serve", "--listen", "127.0.0.1:0", "--speculate", "off"]);
        command.args(&args).arg("--data-dir").arg(self.dir.join("data"));
        command.env("XDG_CACHE_HOME", self.dir.join("cache")).stderr(Stdio::null());
        if let Some(disk) = &self.disk {
            command.args(["--prefix-disk", disk]);
        }
        let server = Running::spawn(command, "brigade serve listening on ");
        wait_healthy(&server.ready)?;
        self.server = Some(server);
        Ok(())
    }

    /// The address of the server.
    ///
    /// # Errors
    /// If it was not started.
    pub fn url(&self) -> Result<String, String> {
        let server = self.server.as_ref().ok_or("no server runs")?;
        Ok(server.ready.clone())
    }

    /// Looks how much it uses now.
    pub fn look(&mut self) {
        for pid in self.server.iter().flat_map(Running::children) {
            self.seen.worker.0 = self.seen.worker.0.max(own_memory(pid));
        }
        self.seen.disk = self.seen.disk.max(bytes_below(&self.dir.join("cache/brigade/records")));
    }

    /// Kills the server.
    pub fn end(&mut self) {
        self.look();
        let Some(server) = self.server.take() else { return };
        let text = get(&format!("{}/metrics", server.admin())).map(|r| r.body).unwrap_or_default();
        let rows = text.lines().find_map(|line| line.strip_prefix("brigade_ubatch_rows_total "));
        self.seen.rows += rows.and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0) as u64;
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.server = None;
        // It may never have been made.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A server of another program.
pub struct Peer {
    child: Option<Child>,
    url: String,
    /// Most bytes that it had in memory, if it runs here.
    pub peak: u64,
}

impl Peer {
    /// One that runs already, or a program that is started with these arguments, a model and a port.
    ///
    /// # Errors
    /// If it cannot be started or does not answer.
    pub fn start(named: &str, model: &Path, args: &[String]) -> Result<Self, String> {
        if named.starts_with("http://") {
            return Ok(Self { child: None, url: named.to_owned(), peak: 0 });
        }
        let port = first_of_free_ports(1);
        let mut command = Command::new(named);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "-m"]).arg(model);
        command.args(args).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| format!("{named}: {error}"))?;
        let peer = Self { child: Some(child), url: format!("http://127.0.0.1:{port}"), peak: 0 };
        wait_healthy(&peer.url)?;
        Ok(peer)
    }

    /// The address of the server.
    pub fn url(&self) -> String {
        self.url.clone()
    }

    /// Looks how much it uses now.
    pub fn look(&mut self) {
        self.peak = self.peak.max(self.child.as_ref().map_or(0, |child| own_memory(child.id())));
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn wait_healthy(url: &str) -> Result<(), String> {
    let deadline = Instant::now() + READY_WITHIN;
    while Instant::now() < deadline {
        if get(&format!("{url}/health")).is_ok_and(|reply| reply.status == 200) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(format!("{url} does not answer after {READY_WITHIN:?}"))
}

fn bytes_below(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => bytes_below(&entry.path()),
        Ok(data) => data.len(),
        // The file was removed since it was listed.
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

//! Workers on this machine: child processes that run the same binary.
//!
//! A child's standard input is a pipe, and only this process holds its other end. However this process ends,
//! even by `kill -9`, the kernel closes the pipe and the child leaves. Each child is in a process group of
//! its own. Ctrl-C in a terminal therefore reaches this process alone, which then decides who leaves when.

use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use brigade_proto::address::Address;
use brigade_proto::tls::Bundle;
use brigade_worker::config::{MESA_CACHE_VARIABLE, default_cache_dir};
use brigade_worker::prefixes::store::Sizes;
use brigade_worker::run::READY_PREFIX;
use thiserror::Error;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

/// A worker measures its memory and cores, or tests its GPU, before it is ready; a machine that takes longer than this is out of
/// order.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Time a child gets to leave by itself once its standard input is closed.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// Environment variable that decides what is logged.
const LOG_VARIABLE: &str = "RUST_LOG";

/// Environment variables that are arguments of this process and not of its children.
const OWN_VARIABLES: [&str; 2] = ["BRIGADE_DATA_DIR", "BRIGADE_TOKEN"];

/// Settings of every local worker.
#[derive(Clone, Debug)]
pub struct LocalOptions {
    /// Path of the `brigade` binary.
    pub program: PathBuf,
    /// The number of workers.
    pub count: usize,
    /// CPUs of each, by number of the worker; a missing entry leaves it to the system.
    pub cpus: Vec<Vec<usize>>,
    /// Compute threads of each.
    pub threads: Option<usize>,
    /// Whether threads and weights are placed on NUMA nodes, as `--numa` of a worker says it.
    pub numa: Option<String>,
    /// Bytes each may use.
    pub memory: Option<u64>,
    /// Bytes each may use of the host's memory, if its stages lie there.
    pub host_memory: Option<u64>,
    /// Bytes each may use of its GPU's memory, by number of the worker; a missing entry leaves it to the worker.
    pub gpu_memory: Vec<Option<u64>>,
    /// Devices, which workers take in turn; empty: what each finds.
    pub devices: Vec<String>,
    /// Where routed experts are beside GPUs, as `--experts` of a worker says it.
    pub experts: Option<String>,
    /// Each GPU's memory for copies of those with the host, as `--expert-cache` of a worker says it.
    pub expert_cache: Option<String>,
    /// Whether GPUs' matrix units are left alone.
    pub no_coopmat: bool,
    /// Whether GPUs compute products of many rows in f16, and CPUs those of F16 and BF16 in pairs of bfloat16 values.
    pub fast_math: bool,
    /// Name of the kernel table; `None`: each worker's best.
    pub kernels: Option<String>,
    /// How much records of kept prefixes may take on each.
    pub prefixes: Box<Sizes>,
    /// `--log-format` of this process, passed on.
    pub log_format: &'static str,
    /// Log level of workers where `RUST_LOG` is not set.
    pub log_level: &'static str,
}

/// Why a local worker could not be started.
#[derive(Debug, Error)]
pub enum SpawnError {
    /// The process could not be created.
    #[error("cannot start {program}: {source}")]
    Spawn {
        /// The program that could not be run.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The worker ended, or said something else, before it was ready.
    #[error("local worker {index} did not get ready: {reason}")]
    NotReady {
        /// Number of the worker.
        index: usize,
        /// The worker's last output, or how it ended.
        reason: String,
    },
}

/// A running child process. Dropping it kills it.
#[derive(Debug)]
pub struct LocalWorker {
    child: Child,
    /// Closing this tells the child to leave.
    stdin: Option<ChildStdin>,
    address: Address,
}

impl LocalWorker {
    /// Starts worker number `index` and waits until it listens. It speaks TLS if it is given a bundle.
    ///
    /// # Errors
    /// [`SpawnError`]; nothing is left running then.
    pub async fn start(
        options: &LocalOptions,
        index: usize,
        bundle: Option<&Bundle>,
    ) -> Result<Self, SpawnError> {
        let failed = |source| SpawnError::Spawn { program: options.program.clone(), source };
        let mut command = command(options, index);
        if bundle.is_some() {
            command.arg("--credentials-on-stdin");
        }
        let mut child = command.spawn().map_err(failed)?;
        let mut stdin = child.stdin.take();
        if let (Some(stdin), Some(bundle)) = (&mut stdin, bundle) {
            stdin.write_all(bundle.to_text().as_bytes()).await.map_err(failed)?;
        }
        let not_ready = |reason: String| SpawnError::NotReady { index, reason };
        let stdout = child.stdout.take().expect("stdout was configured as a pipe");
        let mut lines = BufReader::new(stdout).lines();
        let line = match timeout(READY_WITHIN, lines.next_line()).await {
            Ok(Ok(Some(line))) => line,
            Ok(Ok(None)) => {
                let ended = match timeout(LEAVE_WITHIN, child.wait()).await {
                    Ok(Ok(status)) => format!("it ended with {status}; its log says why"),
                    _ => "it closed its output".to_string(),
                };
                return Err(not_ready(ended));
            }
            Ok(Err(e)) => return Err(not_ready(format!("its output cannot be read: {e}"))),
            Err(_) => {
                let s = READY_WITHIN.as_secs();
                return Err(not_ready(format!("it said nothing for {s} s")));
            }
        };
        let address = line
            .strip_prefix(READY_PREFIX)
            .and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| not_ready(format!("it said {line:?} instead of its address")))?;
        Ok(Self { child, stdin, address })
    }

    /// The address on which it listens.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The worker's process id; `None` once it has ended.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits until it ends by itself, and says how. Safe to drop and call again.
    pub async fn ended(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => format!("its process ended with {status}"),
            Err(e) => format!("its process cannot be waited for: {e}"),
        }
    }

    /// Asks it to leave, and kills it when it does not.
    pub async fn stop(mut self) {
        self.stdin = None;
        if timeout(LEAVE_WITHIN, self.child.wait()).await.is_err() {
            self.kill().await;
        }
    }

    /// Kills it at once, hung or not.
    pub async fn kill(mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill().await;
    }
}

fn command(options: &LocalOptions, index: usize) -> Command {
    let mut command = Command::new(&options.program);
    command.args(["worker", "--listen", "127.0.0.1:0", "--exit-with-stdin"]);
    // Its options are these, and not those of a worker that this machine has for others.
    command.args(["--config", "none"]);
    command.args(["--log-format", options.log_format]);
    if let Some(cpus) = options.cpus.get(index).filter(|c| !c.is_empty()) {
        let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
        command.arg("--cpus").arg(list.join(","));
    }
    if let Some(threads) = options.threads {
        command.arg("--threads").arg(threads.to_string());
    }
    if let Some(numa) = &options.numa {
        command.arg("--numa").arg(numa);
    }
    if let Some(memory) = options.memory {
        command.arg("--memory").arg(memory.to_string());
    }
    if let Some(memory) = options.host_memory {
        command.arg("--host-memory").arg(memory.to_string());
    }
    if let Some(memory) = options.gpu_memory.get(index).copied().flatten() {
        command.arg("--gpu-memory").arg(memory.to_string());
    }
    if options.no_coopmat {
        command.arg("--no-coopmat");
    }
    if options.fast_math {
        command.arg("--fast-math");
    }
    if let Some(device) = options.devices.iter().cycle().nth(index) {
        command.arg("--device").arg(device);
    }
    if let Some(experts) = &options.experts {
        command.arg("--experts").arg(experts);
    }
    if let Some(size) = &options.expert_cache {
        command.arg("--expert-cache").arg(size);
    }
    if let Some(kernels) = &options.kernels {
        command.arg("--kernels").arg(kernels);
    }
    let Sizes { ram, disk } = *options.prefixes;
    for (option, nbytes) in [("--prefix-ram", ram), ("--prefix-disk", disk)] {
        command.arg(option).arg(nbytes.to_string());
    }
    // Variables that name this process's own files, and its token.
    for variable in OWN_VARIABLES {
        command.env_remove(variable);
    }
    if std::env::var_os(LOG_VARIABLE).is_none() {
        command.env(LOG_VARIABLE, options.log_level);
    }
    // A worker may write to its own cache alone (`sandbox`), and Mesa keeps nothing where it may not write.
    if std::env::var_os(MESA_CACHE_VARIABLE).is_none()
        && let Ok(cache) = default_cache_dir(&|name| std::env::var(name).ok())
    {
        command.env(MESA_CACHE_VARIABLE, cache);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    command.process_group(0).kill_on_drop(true);
    command
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Held from writing a script until it runs. Another test could start a child in between, which would inherit the
    /// open file, and a file that is open for writing cannot be run.
    static STARTS: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

    fn script(name: &str, body: &str) -> LocalOptions {
        let path = std::env::temp_dir().join(format!("brigade-{name}-{}", std::process::id()));
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        LocalOptions {
            program: path,
            count: 1,
            cpus: Vec::new(),
            threads: None,
            numa: None,
            memory: None,
            host_memory: None,
            gpu_memory: Vec::new(),
            experts: None,
            expert_cache: None,
            devices: Vec::new(),
            prefixes: Box::default(),
            no_coopmat: false,
            fast_math: false,
            kernels: None,
            log_format: "text",
            log_level: "error",
        }
    }

    #[test]
    fn drivers_keep_what_they_compiled_where_a_worker_may_write() {
        let command = command(&script("keeps", "true"), 0);
        let set = command.as_std().get_envs().find(|(name, _)| *name == MESA_CACHE_VARIABLE);
        let set = set.and_then(|(_, value)| value).map(PathBuf::from);
        let from = |name: &str| std::env::var(name).ok();
        // A value that the user has set is left as it is.
        let said = std::env::var_os(MESA_CACHE_VARIABLE).is_some();
        assert_eq!(set, default_cache_dir(&from).ok().filter(|_| !said));
    }

    #[tokio::test]
    async fn a_worker_is_ready_when_it_says_so_and_leaves_when_told() {
        let _alone = STARTS.lock().await;
        let options = script("ready", "echo 'brigade worker ready on 127.0.0.1:7'; cat >/dev/null");
        let mut worker = LocalWorker::start(&options, 0, None).await.unwrap();
        assert_eq!(worker.address().to_string(), "127.0.0.1:7");
        worker.stdin = None;
        assert!(worker.ended().await.contains("exit status: 0"));
    }

    #[tokio::test]
    async fn a_worker_that_ends_at_once_is_an_error() {
        let _alone = STARTS.lock().await;
        let reason =
            LocalWorker::start(&script("ends", "exit 3"), 0, None).await.unwrap_err().to_string();
        assert!(reason.contains("exit status: 3"), "{reason}");
        let reason = LocalWorker::start(&script("says", "echo hello"), 1, None).await.unwrap_err();
        assert!(reason.to_string().contains("\"hello\""), "{reason}");
    }
}

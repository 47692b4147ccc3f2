//! Real processes: the `brigade` binary as a user runs it, and plain HTTP to talk to it.
//!
//! All processes that a test starts end with it. Dropping a [`Running`] kills the process, and the workers that it
//! started leave with it; the harness fails a program that leaves some behind.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use brigade_model_tests::line::kernels_option;

/// How long a process may take until its ready line, on a machine that is busy with other tests.
const READY_WITHIN: Duration = Duration::from_secs(120);

/// How long an answer may take, on a machine busy with other tests and other work.
const ANSWERED_WITHIN: Duration = Duration::from_secs(600);

/// Models, for [`synth`], of every kind of state: attention alone, Mamba-2 with attention, delta rule with latent
/// attention, RWKV, attention with windows.
pub const KINDS_OF_STATE: [(&str, &str); 5] = [
    ("llama", "tiny"),
    ("granitehybrid", "tiny"),
    ("kimi-linear", "tiny-moe"),
    ("rwkv7", "tiny"),
    ("gpt-oss", "tiny-moe"),
];

/// The kinds of state that test number `turn` of those that try one thing with each kind has: two, so that each kind is in
/// several tests; at night (`BRIGADE_TEST_ALL_PAIRS`) all.
pub fn kinds_of_state(turn: usize) -> impl Iterator<Item = (&'static str, &'static str)> {
    let all = std::env::var_os("BRIGADE_TEST_ALL_PAIRS").is_some();
    let n = KINDS_OF_STATE.len();
    let is_in_turn = move |kind: usize| all || kind == turn % n || kind == (turn + 2) % n;
    KINDS_OF_STATE
        .into_iter()
        .enumerate()
        .filter(move |(i, _)| is_in_turn(*i))
        .map(|(_, kind)| kind)
}

/// The speeds of workers in tests, where they name no others: a worker that measures itself beside other tests may be given
/// no layers, and who wants to lose it loses nothing.
pub const SPEED: (&str, &str) = ("BRIGADE_SPEED", "20,200");

/// The beginning of a server's ready line.
const SERVING: &str = "brigade serve listening on ";

/// The beginning of the line with its address for operators.
const ADMIN: &str = "brigade admin on ";

/// The binary that was built with this program.
static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// Servers make no drafts where they are not told otherwise.
static WITHOUT_DRAFTS: AtomicBool = AtomicBool::new(false);

/// Turns drafts off for the servers of a test program, unless `--speculate` is given. Its streams must be running
/// when something happens, and drafts would end some of them before.
pub fn without_drafts() {
    WITHOUT_DRAFTS.store(true, Ordering::Relaxed);
}

/// Commands see the machine's Vulkan drivers where they are not told otherwise.
static WITHOUT_GPUS: AtomicBool = AtomicBool::new(false);

/// Where the loader of Vulkan looks for drivers: here it finds none.
const NO_DRIVERS: (&str, &str) = ("VK_DRIVER_FILES", "/nowhere/of-tests");

/// Hides the machine's Vulkan drivers from the commands of a test program that name no device. Loading a driver takes
/// as long as all else that a small process does at its start, and these tests compute on CPUs. Where
/// `BRIGADE_TEST_KERNELS` names a GPU, nothing is hidden.
pub fn without_gpus() {
    WITHOUT_GPUS.store(!kernels_option().contains(&"--device"), Ordering::Relaxed);
}

/// Hides drivers from a command of ours, if it asks for none.
fn hide_gpus(command: &mut Command) {
    let asks = command.get_args().any(|arg| arg == "--device" || arg == "devices");
    let is_ours = command.get_program() == brigade().as_os_str();
    if WITHOUT_GPUS.load(Ordering::Relaxed) && is_ours && !asks {
        command.env(NO_DRIVERS.0, NO_DRIVERS.1);
    }
}

/// Says once, when a test program starts, which binary was built with it: `env!("CARGO_BIN_EXE_brigade")`.
pub fn use_binary(path: &str) {
    BINARY.set(path.into()).expect("said once");
}

/// The binary that was built with the test program.
///
/// # Panics
/// If its place was not set.
pub fn brigade() -> PathBuf {
    BINARY.get().expect("main calls `use_binary`").clone()
}

/// The same as [`use_binary`] for a benchmark, for which cargo names no binary: takes the one beside it in the target
/// folder.
///
/// # Panics
/// If it was not built.
pub fn use_binary_beside() {
    let bench = std::env::current_exe().unwrap();
    let folder = bench.parent().and_then(|deps| deps.parent()).unwrap();
    let binary = folder.join(format!("brigade{}", std::env::consts::EXE_SUFFIX));
    assert!(binary.is_file(), "{} is missing: build the workspace", binary.display());
    use_binary(binary.to_str().unwrap());
}

/// The data folder of processes that are given none. No test may find the keys of the user who runs it.
fn no_data() -> PathBuf {
    std::env::temp_dir().join(format!("brigade-test-data-{}", std::process::id()))
}

/// Runs a command to its end.
pub fn run(args: &[&str]) -> Output {
    let mut command = Command::new(brigade());
    command.env("XDG_DATA_HOME", no_data()).env(SPEED.0, SPEED.1);
    command.args(args);
    hide_gpus(&mut command);
    command.stdin(Stdio::null()).output().unwrap()
}

/// A process of ours that is ready.
pub struct Running {
    child: Child,
    /// The rest of its ready line.
    pub ready: String,
    /// Lines that it printed before that.
    pub said: Vec<String>,
    _stdout: BufReader<ChildStdout>,
}

impl Running {
    /// Starts `brigade ARGS` and waits for the line that starts with `prefix`.
    pub fn start(args: &[&str], prefix: &'static str) -> Self {
        let mut command = Command::new(brigade());
        command.args(args);
        Self::spawn(command, prefix)
    }

    /// The same as [`Running::start`], with its log (standard error) in a file.
    pub fn start_logged(args: &[&str], prefix: &'static str, log: &Path) -> Self {
        let mut command = Command::new(brigade());
        command.args(args).stderr(std::fs::File::create(log).unwrap());
        Self::spawn(command, prefix)
    }

    /// The same as [`Running::start`], for any command.
    pub fn spawn(mut command: Command, prefix: &'static str) -> Self {
        command.env(SPEED.0, SPEED.1);
        let has = |wanted: &str| command.get_args().any(|arg| arg == wanted);
        let is_ours = command.get_program() == brigade().as_os_str() && has("serve");
        if WITHOUT_DRAFTS.load(Ordering::Relaxed) && is_ours && !has("--speculate") {
            command.args(["--speculate", "off"]);
        }
        command.env("XDG_DATA_HOME", no_data());
        hide_gpus(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdout = child.stdout.take().unwrap();
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            let mut stdout = BufReader::new(stdout);
            let (mut line, mut said) = (String::new(), Vec::new());
            while stdout.read_line(&mut line).unwrap_or(0) > 0 {
                if let Some(rest) = line.trim_end().strip_prefix(prefix) {
                    // The receiver is gone only when the test has given up.
                    let _ = send.send((rest.to_owned(), said, stdout));
                    return;
                }
                said.push(line.trim_end().to_owned());
                line.clear();
            }
        });
        match receive.recv_timeout(READY_WITHIN) {
            Ok((ready, said, stdout)) => Self { child, ready, said, _stdout: stdout },
            Err(reason) => {
                // Already ended, or about to.
                let _ = child.kill();
                panic!("{command:?} did not get ready: {reason}");
            }
        }
    }

    /// A server's address for operators; an old server has the same for all.
    pub fn admin(&self) -> &str {
        let named = self.said.iter().find_map(|line| line.strip_prefix(ADMIN));
        named.unwrap_or(&self.ready)
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Processes that it has started, oldest first.
    pub fn children(&self) -> Vec<u32> {
        children_of(self.pid())
    }

    /// The process of a node's stage: `1/2`.
    pub fn stage(&self, share: &str) -> Option<u32> {
        let is_it = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains(&format!("--stage\0{share}"))
        };
        self.children().into_iter().find(is_it)
    }

    /// Asks it to end and waits; its exit code, `None` if it had to be killed after `patience`.
    pub fn stop(mut self, patience: Duration) -> Option<i32> {
        signal("INT", self.pid());
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal by name (`KILL`, `STOP`, `CONT`, `INT`).
pub fn signal(name: &str, pid: u32) {
    assert!(try_signal(name, pid), "cannot send {name} to {pid}");
}

/// The same as [`signal`], for a process that may be gone. True if it was there.
pub fn try_signal(name: &str, pid: u32) -> bool {
    Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap().success()
}

/// Whether a process exists (one that ended but was not waited for does not count).
pub fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with('Z'))
}

/// Bytes that a process has in memory; 0 where it has ended.
pub fn resident(pid: u32) -> u64 {
    memory(pid, "VmRSS:")
}

/// Bytes in memory that are a process's own; 0 where it has ended. Programs and libraries are pages of files, which everybody
/// shares, and no plan counts them.
pub fn own_memory(pid: u32) -> u64 {
    memory(pid, "RssAnon:")
}

fn memory(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Processes that another one has started, oldest first.
pub fn children_of(parent: u32) -> Vec<u32> {
    let is_child = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or("");
        after_name.split_whitespace().nth(1).and_then(|p| p.parse().ok()) == Some(parent)
    };
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut children: Vec<u32> = pids.filter(is_child).filter(|&pid| is_alive(pid)).collect();
    children.sort_unstable();
    children
}

/// Writes a small random model of an architecture, with a tokenizer and a chat template; the caller
/// removes it.
///
/// # Panics
/// If it cannot be written.
pub fn synth(arch: &str, size: &str) -> PathBuf {
    // Tests of one program run at the same time, and each removes its own.
    static WRITTEN: AtomicUsize = AtomicUsize::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let name = format!("brigade-{}-{number}-{arch}-{size}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    // One that a killed test of the same process id has left is replaced.
    let file = path.to_str().unwrap();
    let output = run(&["synth", "--arch", arch, "--size", size, "--force", "--out", file]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    path
}

/// A server with its own local workers.
pub struct Server {
    /// The process of the coordinator.
    pub process: Running,
}

impl Server {
    /// Starts `brigade serve ARGS` on a free port and waits until its line is up.
    pub fn start(args: &[&str]) -> Self {
        Self::ready(Running::start(&Self::args(args), SERVING))
    }

    /// The same as [`Server::start`], with another binary.
    pub fn start_of(binary: &Path, args: &[&str]) -> Self {
        let mut command = Command::new(binary);
        command.args(Self::args(args));
        Self::ready(Running::spawn(command, SERVING))
    }

    /// The same as [`Server::start`], with its log and that of its workers in a file.
    pub fn start_logged(args: &[&str], log: &Path) -> Self {
        Self::ready(Running::start_logged(&Self::args(args), SERVING, log))
    }

    fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
        let started = ["serve", "--listen", "127.0.0.1:0"].into_iter().chain(more.iter().copied());
        // Workers that are there already have their own devices.
        let local = !more.iter().any(|arg| ["--worker", "--kernels", "--device"].contains(arg));
        let device = if local { kernels_option() } else { Vec::new() };
        started.chain(device).collect()
    }

    fn ready(process: Running) -> Self {
        let server = Self { process };
        server.wait_healthy(READY_WITHIN);
        server
    }

    /// The address of a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.process.ready)
    }

    /// The address of a path for operators.
    pub fn admin(&self, path: &str) -> String {
        format!("{}{path}", self.process.admin())
    }

    /// Waits until `/health` says that the line is up.
    ///
    /// # Panics
    /// If it does not within `patience`.
    pub fn wait_healthy(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if get(&self.url("/health")).is_ok_and(|r| r.status == 200) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the line is not up after {patience:?}");
    }

    /// Posts a JSON body.
    pub fn post(&self, path: &str, body: &serde_json::Value) -> Reply {
        post(&self.url(path), &body.to_string()).unwrap()
    }

    /// The text of a chat completion without streaming.
    ///
    /// # Panics
    /// If the answer is not a completion.
    pub fn chat(&self, body: &serde_json::Value) -> String {
        let reply = self.post("/v1/chat/completions", body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let json: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        json["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    }

    /// A chat completion as a stream: text so far, and how it ended.
    pub fn chat_stream(&self, body: &serde_json::Value) -> Streamed {
        let mut body = body.clone();
        body["stream"] = true.into();
        stream(&self.url("/v1/chat/completions"), &body.to_string())
    }

    /// Starts a chat completion as a stream and hangs up after `n` events.
    ///
    /// # Panics
    /// If the stream ends before.
    pub fn chat_hang_up(&self, body: &serde_json::Value, n: usize) {
        let mut body = body.clone();
        body["stream"] = true.into();
        let request = agent().post(self.url("/v1/chat/completions"));
        let request = request.header("content-type", "application/json");
        let mut response = request.send(body.to_string()).unwrap();
        let lines = BufReader::new(response.body_mut().as_reader()).lines();
        let events = lines.map_while(Result::ok).filter(|line| line.starts_with("data: "));
        assert_eq!(events.take(n).count(), n, "the stream ended before it was left");
    }

    /// The status of a model's line, of several.
    pub fn line_status(&self, model: &str) -> serde_json::Value {
        let reply = get(&self.admin(&format!("/admin/cluster?model={model}"))).unwrap();
        let answer: serde_json::Value = serde_json::from_str(&reply.body).unwrap();
        answer["status"].clone()
    }

    /// The names of the workers of a model's line, in order.
    pub fn line_workers(&self, model: &str) -> Vec<String> {
        let status = self.line_status(model);
        let stages = status["stages"].as_array().into_iter().flatten();
        stages.map(|stage| stage["worker"].as_str().unwrap().to_owned()).collect()
    }

    /// Value of a metric without labels, or with exactly those in `name`; 0 where there is no such metric.
    pub fn metric(&self, name: &str) -> f64 {
        let text = get(&self.admin("/metrics")).unwrap().body;
        let line = text.lines().find(|l| l.strip_prefix(name).is_some_and(|r| r.starts_with(' ')));
        line.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
    }
}

/// A whole HTTP answer.
#[derive(Debug)]
pub struct Reply {
    /// The HTTP status code.
    pub status: u16,
    /// The reply's headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The response body as text.
    pub body: String,
}

impl Reply {
    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

/// A stream as its client saw it.
#[derive(Debug, Default)]
pub struct Streamed {
    /// Text of all deltas.
    pub text: String,
    /// Reason given for the end, if it ended well.
    pub finish_reason: Option<String>,
    /// Whether a stream was begun; else the request was refused.
    pub began: bool,
    /// Error told in the stream, or that the request failed at once.
    pub error: Option<String>,
    /// Whether the stream was closed with `[DONE]`.
    pub done: bool,
}

fn agent() -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(ANSWERED_WITHIN))
        .build()
        .into()
}

/// Sends a GET request.
pub fn get(url: &str) -> Result<Reply, ureq::Error> {
    agent().get(url).call().and_then(whole)
}

/// Gets a page with one more header, which has this value.
pub fn get_with(url: &str, header: &str, value: &str) -> Result<Reply, ureq::Error> {
    agent().get(url).header(header, value).call().and_then(whole)
}

/// Posts a body as JSON (whether it is or not).
pub fn post(url: &str, body: &str) -> Result<Reply, ureq::Error> {
    post_with(url, body, "accept", "*/*")
}

/// The same as [`post`], with one more header.
pub fn post_with(url: &str, body: &str, header: &str, value: &str) -> Result<Reply, ureq::Error> {
    let request = agent().post(url).header("content-type", "application/json");
    request.header(header, value).send(body).and_then(whole)
}

fn whole(mut response: ureq::http::Response<ureq::Body>) -> Result<Reply, ureq::Error> {
    let header = |(name, value): (&ureq::http::HeaderName, &ureq::http::HeaderValue)| {
        (name.as_str().to_owned(), value.to_str().unwrap_or("").to_owned())
    };
    Ok(Reply {
        status: response.status().as_u16(),
        headers: response.headers().iter().map(header).collect(),
        body: response.body_mut().read_to_string()?,
    })
}

/// Posts a streaming request and reads it to its end.
fn stream(url: &str, body: &str) -> Streamed {
    let request = agent().post(url).header("content-type", "application/json");
    let mut response = match request.send(body) {
        Ok(response) => response,
        Err(reason) => return Streamed { error: Some(reason.to_string()), ..Streamed::default() },
    };
    let mut seen = Streamed { began: response.status() == 200, ..Streamed::default() };
    if !seen.began {
        seen.error = Some(response.body_mut().read_to_string().unwrap_or_default());
        return seen;
    }
    read_events(response.body_mut().as_reader(), &mut seen);
    seen
}

fn read_events(body: impl Read, seen: &mut Streamed) {
    for line in BufReader::new(body).lines() {
        let line = match line {
            Ok(line) => line,
            Err(reason) => {
                seen.error = Some(format!("the stream broke: {reason}"));
                return;
            }
        };
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            seen.done = true;
            continue;
        }
        let event: serde_json::Value = serde_json::from_str(data).unwrap();
        if let Some(error) = event.get("error") {
            seen.error = Some(error.to_string());
        }
        let choice = &event["choices"][0];
        seen.text.push_str(choice["delta"]["content"].as_str().unwrap_or(""));
        if let Some(reason) = choice["finish_reason"].as_str() {
            seen.finish_reason = Some(reason.to_owned());
        }
    }
}

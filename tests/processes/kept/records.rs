//! Servers whose workers keep records of prefixes, and their answers to prompts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use brigade_tests::process::{Reply, Running, brigade, get, post_with, synth};
use serde_json::{Value, json};

/// For waits that end by themselves on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nothing more is written when nothing was for so long.
const SETTLED: Duration = Duration::from_millis(400);

pub const DRAWN: usize = 8;

/// A prompt of several pages and some tokens.
pub fn prompt(seed: u32) -> Vec<u32> {
    (0..300).map(|i| 1 + (i * 7 + seed * 31) % 200).collect()
}

pub struct Place {
    /// The folder of data and caches.
    pub dir: PathBuf,
    /// The file of the served model.
    pub model: PathBuf,
    /// Positions of a sequence.
    pub ctx: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
        let _ = std::fs::remove_file(&self.model);
    }
}

impl Place {
    pub fn new(name: &str, arch: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("brigade-tiers-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        Self { dir, model: synth(arch, "tiny"), ctx: 1024 }
    }

    /// A server whose workers keep what they have in this place.
    pub fn serve(&self, data: &str, more: &[&str]) -> Running {
        self.serve_of(&self.model, data, more)
    }

    /// The same, of another model.
    pub fn serve_of(&self, model: &Path, data: &str, more: &[&str]) -> Running {
        let mut command = Command::new(brigade());
        command.args(["serve", "--listen", "127.0.0.1:0", "--speculate", "off"]);
        command.args(["--ctx", &self.ctx.to_string()]);
        command.arg("-m").arg(model).arg("--data-dir").arg(self.dir.join(data)).args(more);
        command.env("XDG_CACHE_HOME", self.dir.join("cache"));
        let server = Running::spawn(command, "brigade serve listening on ");
        let deadline = Instant::now() + PATIENCE;
        while get(&format!("{}/health", server.ready)).unwrap().status != 200 {
            assert!(Instant::now() < deadline, "the line does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    pub fn files(&self) -> Vec<PathBuf> {
        let of = |dir: &Path| {
            let all = std::fs::read_dir(dir).into_iter().flatten();
            all.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        };
        of(&self.dir.join("cache/brigade/records")).iter().flat_map(|dir| of(dir)).collect()
    }
}

pub fn metric(server: &Running, name: &str) -> u64 {
    let text = get(&format!("{}/metrics", server.admin())).unwrap().body;
    let line = text.lines().find(|l| l.strip_prefix(name).is_some_and(|r| r.starts_with(' ')));
    line.and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0) as u64
}

/// The answer to a prompt, for the holder of a key or without one.
pub fn reply(server: &Running, prompt: &[u32], key: &str) -> Reply {
    let body = json!({ "prompt": prompt, "max_tokens": DRAWN, "temperature": 0, "logprobs": 2,
                       "ignore_eos": true });
    let bearer = format!("Bearer {key}");
    let url = format!("{}/v1/completions", server.ready);
    post_with(&url, &body.to_string(), "authorization", &bearer).unwrap()
}

/// The answer with log-probabilities, and the number of prompt tokens that were reused.
pub fn ask(server: &Running, prompt: &[u32]) -> (Value, u64) {
    ask_as(server, prompt, "")
}

/// The same for the holder of a key.
pub fn ask_as(server: &Running, prompt: &[u32], key: &str) -> (Value, u64) {
    let before = metric(server, "brigade_ubatch_rows_total");
    let reply = reply(server, prompt, key);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let answer: Value = serde_json::from_str(&reply.body).unwrap();
    let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let rows = metric(server, "brigade_ubatch_rows_total") - before;
    assert_eq!(rows, (prompt.len() + DRAWN - 1) as u64 - cached, "{}", answer["usage"]);
    (answer["choices"][0].clone(), cached)
}

/// Waits until all that is kept is written.
pub fn settle(server: &Running) {
    let written = || metric(server, "brigade_prefix_bytes_written_total");
    let (mut last, mut since) = (written(), Instant::now());
    let deadline = since + PATIENCE;
    while last == 0 || since.elapsed() < SETTLED {
        assert!(Instant::now() < deadline, "{last} bytes were written");
        std::thread::sleep(Duration::from_millis(50));
        let now = written();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

/// Waits until so many states are written to disk: metrics of bytes count no state that is in memory alone.
pub fn settle_kept(server: &Running, n: u64) {
    until("kept states to be written", || metric(server, "brigade_prefix_states_saved_total") >= n);
}

/// Waits for something that comes by itself.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

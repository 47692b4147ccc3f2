//! Prefixes below the stages' memory: prompts are not read twice when their states had to go, or all processes were
//! killed, or the layers are cut otherwise. The bytes are those of a prompt that was computed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use brigade_tests::process::{Running, brigade, get, post, synth};
use serde_json::{Value, json};

/// For waits that end by themselves on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Nothing more is written when nothing was for so long.
const SETTLED: Duration = Duration::from_millis(400);

const DRAWN: usize = 8;

/// A prompt of several pages and some tokens.
pub fn prompt(seed: u32) -> Vec<u32> {
    (0..300).map(|i| 1 + (i * 7 + seed * 31) % 200).collect()
}

pub struct Place {
    pub dir: PathBuf,
    model: PathBuf,
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
        Self { dir, model: synth(arch, "tiny") }
    }

    /// A server whose workers keep what they have in this place.
    pub fn serve(&self, data: &str, more: &[&str]) -> Running {
        let mut command = Command::new(brigade());
        command.args(["serve", "--listen", "127.0.0.1:0", "--speculate", "off", "--ctx", "1024"]);
        command.arg("-m").arg(&self.model).arg("--data-dir").arg(self.dir.join(data)).args(more);
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
        of(&self.dir.join("cache/brigade/prefixes")).iter().flat_map(|dir| of(dir)).collect()
    }
}

fn metric(server: &Running, name: &str) -> u64 {
    let text = get(&format!("{}/metrics", server.admin())).unwrap().body;
    let line = text.lines().find(|l| l.strip_prefix(name).is_some_and(|r| r.starts_with(' ')));
    line.and_then(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0) as u64
}

/// What was said, with log-probabilities; and how many tokens of the prompt were not computed.
fn ask(server: &Running, prompt: &[u32]) -> (Value, u64) {
    let body = json!({ "prompt": prompt, "max_tokens": DRAWN, "temperature": 0, "logprobs": 2,
                       "ignore_eos": true });
    let before = metric(server, "brigade_ubatch_rows_total");
    let reply = post(&format!("{}/v1/completions", server.ready), &body.to_string()).unwrap();
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

const TIERS: &[&str] = &["--prefix-disk", "64M"];

fn prompts_outlive_processes_and_cuts(arch: &str, is_whole: bool) {
    let place = Place::new(arch, arch);
    let cold = place.serve("cold", &["--keep", "0"]);
    let (first, other) = (prompt(1), prompt(2));
    let branch = [&first[..200], &other[..100]].concat();
    let expected: Vec<Value> = [&first, &branch].map(|prompt| ask(&cold, prompt).0).into();
    drop(cold);
    let two = ["--workers", "2", "--cuts", "1", "--keep", "4"];
    let server = place.serve("data", &[&two, TIERS].concat());
    assert_eq!(ask(&server, &first), (expected[0].clone(), 0));
    settle(&server);
    // Drop kills it with SIGKILL; its workers end with it.
    drop(server);
    let modes =
        place.files().iter().all(|p| p.metadata().unwrap().permissions().mode() & 0o77 == 0);
    assert!(modes && !place.files().is_empty(), "others cannot read them");
    let three = ["--workers", "3", "--cuts", "1,2", "--keep", "4"];
    let server = place.serve("data", &[&three, TIERS].concat());
    let begun = Instant::now();
    let (said, cached) = ask(&server, &first);
    println!(
        "{arch}: {cached} of {} after a restart on another cut, {:?}",
        first.len(),
        begun.elapsed()
    );
    assert_eq!(said, expected[0]);
    // Where any position will do, whole pages; else the state before the last row.
    assert_eq!(cached, if is_whole { 299 } else { 256 });
    assert_eq!(metric(&server, "brigade_prefixes_loaded_total{outcome=\"done\"}"), 1);
    let (said, cached) = ask(&server, &branch);
    assert_eq!(said, expected[1]);
    assert!(cached > 0 || is_whole, "it branches off where states are few: {cached}");
    drop(server);
    // Another salt, another type of cache: nothing is found.
    for (data, more) in [("other", ["--kv-type", "f16"]), ("data", ["--kv-type", "q8_0"])] {
        let server = place.serve(data, &[&two, &more[..], TIERS].concat());
        let (said, cached) = ask(&server, &first);
        assert_eq!(cached, 0, "{data} {more:?}");
        assert_eq!(said == expected[0], data == "other");
    }
}

fn prompts_of_llama_outlive_processes_and_cuts() {
    prompts_outlive_processes_and_cuts("llama", false);
}

fn prompts_of_granitehybrid_outlive_processes_and_cuts() {
    prompts_outlive_processes_and_cuts("granitehybrid", true);
}

fn what_had_to_go_comes_back_from_ram_and_without_tiers_it_does_not() {
    let place = Place::new("ram", "llama");
    let args = ["--workers", "2", "--cuts", "1", "--keep", "1"];
    for tiers in [&["--prefix-ram", "64M"][..], &[]] {
        let server = place.serve("data", &[&args, tiers].concat());
        let (said, cached) = ask(&server, &prompt(1));
        assert_eq!(cached, 0);
        if !tiers.is_empty() {
            settle_kept(&server, 1);
        }
        ask(&server, &prompt(2));
        // The only place is free again when that one is written too.
        if !tiers.is_empty() {
            settle_kept(&server, 2);
        }
        let again = ask(&server, &prompt(1));
        assert_eq!(again, (said, if tiers.is_empty() { 0 } else { 256 }));
        assert!(place.files().is_empty(), "nothing is on the disk");
    }
}

/// Waits a moment: what is written to memory alone is not counted.
fn settle_kept(server: &Running, n: u64) {
    let deadline = Instant::now() + PATIENCE;
    while metric(server, "brigade_prefix_states_saved_total") < n {
        assert!(Instant::now() < deadline, "{n} states are not saved");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        prompts_of_llama_outlive_processes_and_cuts,
        prompts_of_granitehybrid_outlive_processes_and_cuts,
        what_had_to_go_comes_back_from_ram_and_without_tiers_it_does_not;
];

//! Kept prompt states are listed for their owners and for operators, and dropped for one key or for all: in memory
//! and on the workers' disks, while requests run.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use brigade_tests::process::{Running, get, get_with, post_with, run};
use brigade_tests::up_share::free_address;
use serde_json::{Value, json};

use crate::kept::records::{Place, prompt, settle};

/// For waits that end by themselves on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The output of `brigade ...`, and whether it succeeded.
fn say(data: &Path, args: &[&str]) -> (bool, String) {
    let output = run(&[args, &["--data-dir", data.to_str().unwrap()]].concat());
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap().trim().to_owned())
}

/// New keys of ann and of bob.
fn keys_in(place: &Place) -> [String; 2] {
    let data = place.dir.join("data");
    ["ann", "bob"].map(|name| {
        let (is_made, key) = say(&data, &["key", "create", name]);
        assert!(is_made, "{key}");
        key.lines().next().unwrap().to_owned()
    })
}

struct Scene {
    place: Place,
    server: Running,
    /// The keys of ann and of bob.
    keys: [String; 2],
}

impl Scene {
    fn new(name: &str, arch: &str) -> Self {
        let place = Place::new(name, arch);
        let keys = keys_in(&place);
        let args = ["--workers", "2", "--cuts", "1", "--keep", "8", "--prefix-disk", "64M"];
        let server = place.serve("data", &args);
        Self { place, server, keys }
    }

    fn cluster(&self, args: &[&str]) -> (bool, String) {
        say(&self.place.dir.join("data"), &[&["cluster", "cache"], args].concat())
    }

    /// The answer to a prompt of a key, and how many of its tokens were there.
    fn ask(&self, who: usize, prompt: &[u32], max_tokens: u32) -> (Value, u64) {
        let body = json!({ "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
                           "ignore_eos": true });
        let bearer = format!("Bearer {}", self.keys[who]);
        let url = format!("{}/v1/completions", self.server.ready);
        let reply = post_with(&url, &body.to_string(), "authorization", &bearer).unwrap();
        assert_eq!(reply.status, 200, "{}", reply.body);
        let answer: Value = serde_json::from_str(&reply.body).unwrap();
        let cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
        (answer["choices"][0].clone(), cached)
    }

    /// The kept states, once the condition holds.
    fn until(&self, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (_, text) = self.cluster(&["--json"]);
            let answer: Value = serde_json::from_str(&text).unwrap();
            let owners = answer["cache"].as_array().unwrap().clone();
            if is_so(&owners) {
                return owners;
            }
            assert!(Instant::now() < deadline, "{owners:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The part of the page about kept states, as a key sees it.
    fn page(&self, who: usize) -> Value {
        let bearer = format!("Bearer {}", self.keys[who]);
        let url = format!("{}/line", self.server.ready);
        let line = get_with(&url, "authorization", &bearer).unwrap().body;
        serde_json::from_str::<Value>(&line).unwrap()["prefixes"].clone()
    }
}

/// The number of record files.
fn records(place: &Place) -> usize {
    records_among(&place.files())
}

fn records_among(files: &[PathBuf]) -> usize {
    let is_record = |path: &&PathBuf| {
        let name = path.file_name().unwrap();
        name != "lock" && name != "form"
    };
    files.iter().filter(is_record).count()
}

fn names(owners: &[Value]) -> Vec<&str> {
    let mut names: Vec<&str> = owners.iter().map(|of| of["owner"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

fn all_recorded(owners: &[Value]) -> bool {
    let states = owners.iter().flat_map(|of| of["largest"].as_array().unwrap());
    names(owners) == ["ann", "bob"] && states.clone().all(|state| state["recorded"] == true)
}

fn what_is_kept_is_seen(scene: &Scene) {
    // States in a prompt may be recorded before that at its answer's end is kept.
    let has_end = |of: &Value| of["largest"][0]["tokens"].as_u64() >= Some(300);
    let owners = scene.until(|owners| all_recorded(owners) && owners.iter().all(has_end));
    for of in &owners {
        let largest = &of["largest"][0];
        let tokens = largest["tokens"].as_u64().unwrap();
        assert!((300..320).contains(&tokens), "the prompt and its answer: {of}");
        assert!(of["bytes"].as_u64() >= largest["bytes"].as_u64(), "{of}");
        assert!(largest["bytes"].as_u64().unwrap() > 1000, "{of}");
    }
    let hits = |name: &str| {
        let of = owners.iter().find(|of| of["owner"] == name).unwrap();
        of["hits"].as_u64().unwrap()
    };
    assert_eq!((hits("ann"), hits("bob")), (1, 0), "ann asked the same twice");
    let (is_told, table) = scene.cluster(&[]);
    assert!(is_told && table.contains("memory, records") && table.contains("ann: "), "{table}");
    println!("{table}");
    let at_admin = get(&format!("{}/admin/cache", scene.server.admin())).unwrap().body;
    let at_admin: Value = serde_json::from_str(&at_admin).unwrap();
    assert_eq!(names(at_admin["cache"].as_array().unwrap()), ["ann", "bob"]);
    // Each client sees its own on the page, and no names.
    let pages = [scene.page(0), scene.page(1)];
    assert_eq!((&pages[0]["hits"], &pages[1]["hits"]), (&json!(1), &json!(0)), "{pages:?}");
    assert!(!pages.iter().any(|page| page.to_string().contains("ann")));
}

/// The sum of a metric over the lines that have a label.
fn value(server: &Running, name: &str, label: &str) -> f64 {
    let text = get(&format!("{}/metrics", server.admin())).unwrap().body;
    let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
}

fn metrics_tell_the_same(server: &Running) {
    let tier = |tier: &str| value(server, "brigade_prefix_bytes{", &format!("tier=\"{tier}\""));
    let bundles = |stage| value(server, "brigade_prefix_bundles{", &format!("stage=\"{stage}\""));
    // Heartbeats tell of records: one a second.
    let deadline = Instant::now() + PATIENCE;
    while tier("disk") < 1000.0 || bundles(0) < 1.0 || bundles(1) < 1.0 {
        assert!(Instant::now() < deadline, "{} bytes", tier("disk"));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(tier("memory") > 1000.0 && tier("ram") == 0.0, "{}", tier("memory"));
    let tokens = ["reused", "computed"].map(|outcome| {
        let label = format!("outcome=\"{outcome}\"");
        value(server, "brigade_prefix_tokens_total{", &label) as u64
    });
    assert_eq!(tokens[0] + tokens[1], 900, "three prompts");
    assert!(tokens[0] >= 256, "{tokens:?}");
}

fn dropped_while_requests_run(arch: &str) {
    let scene = Scene::new(&format!("dropped-{arch}"), arch);
    let (first, theirs) = (prompt(1), prompt(2));
    let (said, cached) = scene.ask(0, &first, 8);
    assert_eq!(cached, 0);
    let again = scene.ask(0, &first, 8);
    assert!(again.0 == said && again.1 >= 256, "{}", again.1);
    scene.ask(1, &theirs, 8);
    settle(&scene.server);
    what_is_kept_is_seen(&scene);
    metrics_tell_the_same(&scene.server);

    let (is_done, why) = scene.cluster(&["--drop", "nobody"]);
    assert!(!is_done && why.contains("no key is called \"nobody\""), "{why}");
    let n_files = records(&scene.place);
    // A long answer to ann, which began with a state that is dropped while it runs.
    let (long, told) = std::thread::scope(|scope| {
        let runs = scope.spawn(|| scene.ask(0, &first, 400));
        let deadline = Instant::now() + PATIENCE;
        let decodes = || value(&scene.server, "brigade_requests_running{", "phase=\"decode\"");
        while decodes() < 1.0 && !runs.is_finished() {
            assert!(Instant::now() < deadline, "the answer does not begin");
        }
        let (is_done, told) = scene.cluster(&["--drop", "ann"]);
        assert!(is_done, "{told}");
        (runs.join().unwrap().0, told)
    });
    // The answer that ran is kept again a while later.
    let left = records(&scene.place);
    println!("{arch}: {told}; {n_files} files before, {left} now");
    assert!(
        told.contains(
            "kept states are dropped, with their records on all workers that are connected"
        ),
        "{told}"
    );
    let gone = value(&scene.server, "brigade_states_gone_total{", "cause=\"dropped\"");
    assert!(gone > 0.0);
    assert!(left < n_files, "what ann's records took is free");
    assert!(long["text"].as_str().unwrap().starts_with(said["text"].as_str().unwrap()));
    // The answer that ran is kept again; once that is dropped too, nothing of ann's is left.
    assert!(scene.cluster(&["--drop", "ann"]).0);
    assert_eq!(names(&scene.until(|owners| !names(owners).contains(&"ann"))), ["bob"]);
    let (same, cached) = scene.ask(0, &first, 400);
    assert_eq!((same, cached), (long, 0), "computed anew, it says what it said");
    assert!(scene.ask(1, &theirs, 8).1 >= 256, "bob's is there");
    // All: nothing is left anywhere, once pending writes are done.
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(scene.cluster(&["--drop", "all"]).0);
        if records(&scene.place) == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "{:?}", scene.place.files());
        std::thread::sleep(Duration::from_millis(50));
    }
    scene.until(<[Value]>::is_empty);
    assert_eq!(scene.cluster(&[]).1, "nothing is kept of prompts");
    assert_eq!(scene.ask(1, &theirs, 8).1, 0);
}

fn kept_prompts_of_llama_are_seen_and_dropped() {
    dropped_while_requests_run("llama");
}

fn kept_prompts_of_granitehybrid_are_seen_and_dropped() {
    dropped_while_requests_run("granitehybrid");
}

/// A worker that joins, and keeps its records in a folder of that name.
fn joins(place: &Place, name: &str, control: &str) -> Running {
    let cache = place.dir.join(name);
    let args = ["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--join", control];
    let more = ["--prefix-disk", "64M", "--cache-dir", cache.to_str().unwrap()];
    Running::start(&[&args[..], &more].concat(), brigade_worker::run::READY_PREFIX)
}

/// The number of record files of that worker.
fn records_of(place: &Place, name: &str) -> usize {
    let of = |dir: &Path| {
        let all = std::fs::read_dir(dir).into_iter().flatten();
        all.map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
    };
    let folders = of(&place.dir.join(name).join("records"));
    records_among(&folders.iter().flat_map(|dir| of(dir)).collect::<Vec<_>>())
}

fn a_spare_worker_drops_its_records_too() {
    let place = Place::new("spare", "llama");
    let keys = keys_in(&place);
    let control = free_address();
    let args = ["--control", &control, "--keep", "8"];
    // The first worker has records of both; then it is away.
    let first = joins(&place, "first", &control);
    let scene = Scene { server: place.serve("data", &args), place, keys };
    scene.ask(0, &prompt(1), 8);
    scene.ask(1, &prompt(2), 8);
    settle(&scene.server);
    let Scene { place, server, keys } = scene;
    let n_files = records_of(&place, "first");
    assert!(n_files > 1, "{n_files}");
    drop((server, first));
    // The next line has another worker: the first one comes back as a spare.
    let _second = joins(&place, "second", &control);
    let scene = Scene { server: place.serve("data", &args), place, keys };
    let _first = joins(&scene.place, "first", &control);
    let spare = || {
        let status = say(&scene.place.dir.join("data"), &["cluster", "status", "--json"]).1;
        let status: Value = serde_json::from_str(&status).unwrap();
        status["status"]["spare"].as_array().is_some_and(|spare| spare.len() == 1)
    };
    let deadline = Instant::now() + PATIENCE;
    while !spare() {
        assert!(Instant::now() < deadline, "no worker is a spare");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(records_of(&scene.place, "first"), n_files, "they outlived the process");
    let (is_done, told) = scene.cluster(&["--drop", "ann"]);
    assert!(is_done, "{told}");
    let left = records_of(&scene.place, "first");
    println!("{told}; {n_files} files of the spare worker before, {left} now");
    assert!(left > 0 && left < n_files, "bob's stay: {left} of {n_files}");
    assert!(scene.cluster(&["--drop", "all"]).0);
    assert_eq!(records_of(&scene.place, "first"), 0);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        kept_prompts_of_llama_are_seen_and_dropped,
        kept_prompts_of_granitehybrid_are_seen_and_dropped,
        a_spare_worker_drops_its_records_too;
];

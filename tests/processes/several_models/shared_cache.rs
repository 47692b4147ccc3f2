//! The cache of a node: one limit over its stages, and what a loaded stage needs stays.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use brigade_proto::address::Address;
use brigade_tests::process::{Running, Server, run, signal};
use brigade_tests::secure::{Cluster, READY};

use crate::several_models::fleet::{CHAT, PATIENCE, Scratch, chat, said, words};

/// Room for the model of 74 KB that is loaded and one of 53 KB, not for another of 74 KB.
const LIMIT: &str = "135K";

/// The ids that a model draws over one worker, or why it does not.
fn drawn(model: &Path, worker: &Address) -> Result<String, String> {
    let (model, worker) = (model.to_str().unwrap(), worker.to_string());
    let output = run(&[
        "run", "-m", model, "--worker", &worker, "--tokens", "1,2,3", "-n", "4", "--temp", "0",
        "--ids",
    ]);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Names of the files in a folder of the cache.
fn names(folder: PathBuf) -> BTreeSet<String> {
    let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
    fs::read_dir(folder).unwrap().map(|entry| name(entry.unwrap())).collect()
}

/// The blobs that stages have pinned.
fn pinned(cache: &Path) -> BTreeSet<String> {
    let mut pins = names(cache.join("pins"));
    pins.remove("turn");
    let text = |pin: &String| fs::read_to_string(cache.join("pins").join(pin)).unwrap();
    let texts: Vec<String> = pins.iter().map(text).collect();
    let blobs = texts.iter().flat_map(|text| text.lines().skip(1));
    blobs.map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

fn what_a_loaded_stage_needs_stays_in_its_nodes_cache() {
    let mut scratch = Scratch::new("pins");
    let [small, loaded, other] =
        ["llama", "granitehybrid", "mamba"].map(|arch| scratch.synth(arch));
    let cache = scratch.folder.join("cache");
    let args = ["worker", "--listen", "127.0.0.1:0", "--stages", "2", "--memory", "2G"];
    let kept = ["--cache-dir", cache.to_str().unwrap(), "--cache-limit", LIMIT, "--no-model-files"];
    let node = Running::start(&[&args[..], &kept, &["--speed", "20,200"]].concat(), READY);
    let port: Address = node.ready.trim().parse().unwrap();
    let (first, second) = (port.clone().of_stage(1), port.of_stage(2));
    let alone = drawn(&other, &first).unwrap();
    assert_eq!(pinned(&cache), BTreeSet::new(), "a model that was unloaded needs nothing");
    let unused = names(cache.join("blobs"));
    let (model, worker) = (loaded.to_str().unwrap(), first.to_string());
    let name = loaded.file_stem().unwrap().to_str().unwrap();
    let server = Server::start(&["-m", model, "--worker", &worker]);
    let needed = pinned(&cache);
    assert!(!needed.is_empty() && needed.is_subset(&names(cache.join("blobs"))));
    assert!(!unused.is_subset(&names(cache.join("blobs"))), "what nobody needs makes room");
    // Workers look once a second.
    let end = Instant::now() + PATIENCE;
    let disk = || server.line_status(name)["nodes"][0]["disk"].clone();
    let is_said = || disk()["pinned"].as_u64().is_some_and(|pinned| pinned > 70_000);
    while !is_said() {
        assert!(Instant::now() < end, "{}", disk());
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(disk()["limit"], 135 << 10);
    // The other stage has what is left, and no more.
    drawn(&small, &second).unwrap();
    signal("KILL", server.process.pid());
    drop(server);
    let refused = drawn(&other, &second).unwrap_err();
    for word in ["bytes more of the cache", "pinned by 1 other stages of 1 models", "--cache-limit"]
    {
        assert!(refused.contains(word), "{word}: {refused}");
    }
    assert_eq!(pinned(&cache), needed, "a stage stays loaded when its coordinator is lost");
    assert!(needed.is_subset(&names(cache.join("blobs"))));
    // However it ends, it needs nothing any more.
    signal("KILL", node.stage("1/2").unwrap());
    assert_eq!(drawn(&other, &second).unwrap(), alone);
    assert!(!needed.is_subset(&names(cache.join("blobs"))));
}

/// Lines of a log that warn.
fn warnings(log: &Path) -> usize {
    let text = fs::read_to_string(log).unwrap();
    text.lines().filter(|line| line.contains(" WARN ")).count()
}

fn a_pool_plans_with_the_caches_of_its_workers() {
    let mut scratch = Scratch::new("pool-cache");
    let files = ["llama", "granitehybrid", "mamba"].map(|arch| scratch.synth(arch));
    let own = "load = \"demand\"\nctx = 512";
    let names = ["small", "hybrid", "other"];
    let [small, hybrid, other] = [0, 1, 2].map(|at| (names[at], Some(files[at].as_path()), own));
    let config = scratch.config(&[small, hybrid, other, ("large", None, own)]);
    let (cluster, log) = (Cluster::new(), scratch.folder.join("log"));
    let data = cluster.data("desk");
    let serve =
        ["serve", "--listen", "127.0.0.1:0", "--control", &cluster.control, "--data-dir", &data];
    let args = [&serve[..], &["--config", &config]].concat();
    let server =
        Server { process: Running::start_logged(&args, "brigade serve listening on ", &log) };
    let cache = scratch.folder.join("cache");
    let kept = ["--cache-dir", cache.to_str().unwrap(), "--cache-limit", LIMIT, "--no-model-files"];
    let more = [&["--stages", "3", "--memory", "3G", "--speed", "20,200"][..], &kept].concat();
    let node = cluster.worker_args("lab", Some(&cluster.token(&[])), &more);
    let node = Running::start(&node.iter().map(String::as_str).collect::<Vec<_>>(), READY);
    let loaded = || -> Vec<String> {
        let all = words(&server).into_iter().filter(|(_, word)| word == "loaded");
        all.map(|(name, _)| name).collect()
    };
    said(&server, "hybrid", 1);
    assert_eq!(loaded(), ["hybrid"]);
    // Whatever goes, the large one has no room: nothing goes for it.
    let refused = server.post(CHAT, &chat("large", 1));
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("the model large cannot be loaded"), "{}", refused.body);
    let text = || fs::read_to_string(&log).unwrap();
    for word in
        ["lack room in the cache of lab", "the limit is 135.00 KiB", "give a worker --cache-limit"]
    {
        assert!(text().contains(word), "{word}: {}", text());
    }
    let ordered = run(&["cluster", "load", "large", "--data-dir", &data]);
    let ordered = String::from_utf8_lossy(&ordered.stderr).into_owned();
    assert!(ordered.contains("--cache-limit"), "{ordered}");
    let listed = cluster.admin(&["cluster", "models"]);
    let row = listed.lines().find(|line| line.starts_with("large")).unwrap();
    assert!(row.contains("unloaded") && row.contains("--cache-limit"), "{row}");
    assert_eq!(loaded(), ["hybrid"]);
    // A stage is free, and its memory; the cache has room when the idle model goes.
    said(&server, "other", 1);
    assert_eq!(loaded(), ["other"]);
    said(&server, "small", 1);
    assert_eq!(loaded(), ["small", "other"], "both have room");
    assert_eq!(["small", "other"].map(|name| server.line_workers(name).len()), [1, 1]);
    assert!(!text().contains("failed while the line was built"), "{}", text());
    assert!(warnings(&log) < 5, "{}", text());
    drop(node);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: what_a_loaded_stage_needs_stays_in_its_nodes_cache, a_pool_plans_with_the_caches_of_its_workers;
];

//! Layers of a model by name that move. They come from the worker that has them, or else from the model's source.

use std::process::Command;

use brigade_gguf::Gguf;
use brigade_tests::hub::Mood;
use brigade_tests::named::{Machine, NAME, model};
use brigade_tests::process::{Running, Server, brigade, run};
use brigade_tests::secure::{Cluster, wait_until};
use serde_json::{Value, json};

use crate::by_name::names_lines::{args, blobs, worker};

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(120);

/// Bytes of the weights of some layers.
fn weights(machine: &Machine, layers: impl FnOnce(usize) -> std::ops::Range<usize>) -> (u64, u64) {
    let file = machine.dir.join("same.gguf");
    std::fs::write(&file, model()).unwrap();
    let gguf = Gguf::open(&file).unwrap();
    let spec = brigade_models::describe(&gguf).unwrap();
    let tensors = brigade_spec::stage_tensors(&gguf, &spec, &layers(spec.n_layer()));
    (tensors.iter().map(|tensor| tensor.nbytes).sum(), gguf.header_bytes().len() as u64)
}

fn what_moves_comes_from_the_worker_that_has_it() {
    let machine = Machine::new();
    let caches = [machine.dir.join("cache-0"), machine.dir.join("cache-1")];
    let workers = [worker(&caches[0], None), worker(&caches[1], None)];
    let (all_but_one, header) = weights(&machine, |n| 0..n - 1);
    let (first, _) = weights(&machine, |_| 0..1);
    let gguf = Gguf::open(machine.dir.join("same.gguf")).unwrap();
    let last = (brigade_models::describe(&gguf).unwrap().n_layer() - 1).to_string();
    let cut = |at: &str| {
        let mut line: Vec<String> =
            args(&workers, "1,1", &[]).into_iter().map(str::to_owned).collect();
        let place = line.iter().position(|arg| *arg == "--tensor-split").unwrap();
        line.splice(place..place + 2, ["--cuts".to_owned(), at.to_owned()]);
        line
    };
    let run_cut = |at: &str| {
        let line = cut(at);
        machine.out(&line.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let ids = run_cut("1");
    assert_eq!(blobs(&caches[0], header), first);
    machine.hub.sent();
    machine.hub.seen();
    // The server has nothing any more, and is not asked.
    machine.hub.mood(Mood::Dead(0, 0));
    assert_eq!(run_cut(&last), ids);
    assert_eq!((machine.hub.sent(), machine.hub.seen().len()), (0, 0));
    let moved = blobs(&caches[0], header) - first;
    println!("{moved} bytes came from the other worker, none from the source");
    assert_eq!(blobs(&caches[0], header), all_but_one);
    // Layers that no worker has come from the source.
    drop(workers);
    machine.hub.mood(Mood::Good);
    std::fs::remove_dir_all(&caches[0]).unwrap();
    std::fs::remove_dir_all(&caches[1]).unwrap();
    let workers = [worker(&caches[0], None), worker(&caches[1], None)];
    assert_eq!(machine.out(&args(&workers, "1,1", &[])), ids);
    assert!(machine.hub.sent() >= model().len() as u64 / 2);
}

/// A worker that joins, with the speed of all others, and its cache.
fn joins(cluster: &Cluster, name: &str, token: &str) -> (Running, std::path::PathBuf) {
    let cache = cluster.dir.join(format!("cache-{name}"));
    let more = ["--no-model-files", "--speed", "20,200", "--cache-dir", cache.to_str().unwrap()];
    let args = cluster.worker_args(name, Some(token), &more);
    let mut command = Command::new(brigade());
    command.args(args);
    for proxy in
        ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"]
    {
        command.env_remove(proxy);
    }
    (Running::spawn(command, brigade_tests::secure::READY), cache)
}

fn answer(server: &Server) -> Option<String> {
    let body = json!({"prompt": "In the", "max_tokens": 8, "temperature": 0, "ignore_eos": true});
    let reply = server.post("/v1/completions", &body);
    let answer: Value = serde_json::from_str(&reply.body).ok()?;
    answer["choices"][0]["text"].as_str().filter(|_| reply.status == 200).map(str::to_owned)
}

fn workers_that_join_fetch_their_own_and_take_over_from_each_other() {
    let (machine, cluster) = (Machine::new(), Cluster::new());
    let desk = cluster.data("desk");
    let args = [
        "serve",
        "-m",
        NAME,
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "127.0.0.1:0",
        "--control",
        &cluster.control,
        "--data-dir",
        &desk,
        "--expect",
        "1",
        "--replace-after",
        "0",
        "--ctx",
        "256",
    ];
    let server =
        Server { process: Running::spawn(machine.command(&args), "brigade serve listening on ") };
    let token = cluster.token(&["--uses", "2"]);
    let (lab, lab_cache) = joins(&cluster, "lab", &token);
    wait_until("the first worker has all layers", PATIENCE, || answer(&server).is_some());
    let text = answer(&server).unwrap();
    let (all, header) = weights(&machine, |n| 0..n);
    assert_eq!(blobs(&lab_cache, header), all);
    let sent = machine.hub.sent();
    println!("alone: {sent} bytes sent by the source for {all} of weights");
    assert!(sent >= all);
    let (_attic, attic_cache) = joins(&cluster, "attic", &token);
    let both =
        || cluster.admin(&["nodes"]).lines().filter(|line| line.contains("attic")).count() > 0;
    wait_until("the second has joined", PATIENCE, both);
    wait_until("layers are cut anew", PATIENCE, || {
        let said = run(&["cluster", "rebalance", "--data-dir", &desk]);
        said.status.success() && stages(&desk) == 2
    });
    assert_eq!(answer(&server).as_ref(), Some(&text));
    let moved = blobs(&attic_cache, header);
    println!(
        "two: {moved} bytes came from the first worker, {} from the source",
        machine.hub.sent()
    );
    assert!(moved > 0 && moved < all);
    drop(lab);
    wait_until("the second has all layers", PATIENCE, || {
        stages(&desk) == 1 && answer(&server).is_some()
    });
    assert_eq!(answer(&server), Some(text));
    let sent = machine.hub.sent();
    println!("the other alone: {sent} bytes from the source, {} were there", moved);
    assert_eq!(blobs(&attic_cache, header), all);
    assert!((all - moved..all - moved + 1000).contains(&sent), "{sent} for {}", all - moved);
}

/// Stages of the line that is up.
fn stages(desk: &str) -> usize {
    let status = run(&["cluster", "status", "--json", "--data-dir", desk]);
    let status = serde_json::from_slice::<Value>(&status.stdout).unwrap_or_default();
    status["status"]["stages"].as_array().map_or(0, Vec::len)
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        what_moves_comes_from_the_worker_that_has_it,
        workers_that_join_fetch_their_own_and_take_over_from_each_other;
];

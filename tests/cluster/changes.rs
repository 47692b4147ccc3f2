//! Planned changes while streams run: workers are drained, added and asked to leave. Every stream goes on with the
//! bytes of an undisturbed run. Only layers that move are loaded, and no position is computed again.
//!
//! The table of pauses takes minutes:
//! `cargo test --release --test cluster -- --ignored changes::pauses`.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use brigade_tests::older::Older;
use brigade_tests::process::{
    Running, Server, get, kinds_of_state, post, post_with, run, signal, synth,
};
use brigade_tests::secure;
use brigade_tests::streams::Streams;
use brigade_tests::up_share::free_address;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const STREAMS: usize = 4;

/// Tokens that each stream draws.
const TOKENS: usize = 400;

fn worker() -> Running {
    worker_at(&free_address())
}

fn worker_at(address: &str) -> Running {
    // All are told the same speed: what else this machine does must not decide the cut.
    let args = ["worker", "--listen", address, "--speed", "20,200"];
    Running::start(&args, brigade_worker::run::READY_PREFIX)
}

fn answer(server: &Server, seed: usize) -> Value {
    let mut body = json!({
        "prompt": "In the", "max_tokens": TOKENS, "temperature": 0.8, "seed": seed, "ignore_eos": true, "logprobs": 1,
    });
    // With adapters, each round uses another share of them.
    if get(&server.url("/lora-adapters")).unwrap().body != "[]" {
        body["lora"] = json!([{ "id": seed % 2, "scale": seed as f64 / 2.0 }]);
    }
    // The sampler's window of tokens moves too.
    if seed.is_multiple_of(2) {
        body["repeat_penalty"] = 1.2.into();
        body["presence_penalty"] = 0.3.into();
    }
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str::<Value>(&reply.body).unwrap()["choices"].clone()
}

struct Cluster {
    server: Arc<Server>,
    folder: PathBuf,
    expected: Vec<Value>,
}

impl Cluster {
    fn start(name: &str, model: &str, workers: &[Running], more: &[&str]) -> Self {
        let addresses: Vec<String> = workers.iter().map(|w| w.ready.trim().to_owned()).collect();
        Self::at(name, model, &addresses, more)
    }

    /// With workers at these addresses.
    fn at(name: &str, model: &str, workers: &[String], more: &[&str]) -> Self {
        Self::unasked(name, model, workers, more).asked()
    }

    /// A line that has computed nothing yet.
    fn unasked(name: &str, model: &str, workers: &[String], more: &[&str]) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("changes-{name}-{}", std::process::id()));
        let mut args = vec!["-m", model, "--keep", "0", "--data-dir", folder.to_str().unwrap()];
        workers.iter().for_each(|worker| args.extend(["--worker", worker]));
        args.extend(more);
        Self { server: Arc::new(Server::start(&args)), folder, expected: Vec::new() }
    }

    fn of(server: Server, folder: PathBuf) -> Self {
        Self { server: Arc::new(server), folder, expected: Vec::new() }.asked()
    }

    /// Computes what streams have to get.
    fn asked(mut self) -> Self {
        self.expected = (0..STREAMS).map(|seed| answer(&self.server, seed)).collect();
        self
    }

    fn ask(&self, question: &[&str]) -> Result<String, String> {
        let more = ["--data-dir", self.folder.to_str().unwrap()];
        let args: Vec<&str> = ["cluster"].iter().chain(question).chain(&more).copied().collect();
        let output = run(&args);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
    }

    fn status(&self) -> Value {
        serde_json::from_str::<Value>(&self.ask(&["status", "--json"]).unwrap()).unwrap()["status"]
            .clone()
    }

    fn stages(&self) -> usize {
        self.status()["stages"].as_array().unwrap().len()
    }

    fn drawn(&self) -> f64 {
        self.server.metric("brigade_generated_tokens_total")
    }

    fn put_back(&self) -> f64 {
        self.server.metric("brigade_sequences_put_back_total{outcome=\"done\"}")
    }

    /// Runs `change` while all streams draw. Their answers must be those without it, and nothing may be computed
    /// again.
    fn during_streams(&self, what: &str, change: impl FnOnce()) {
        let again = || self.server.metric("brigade_tokens_replayed_total");
        let before = again();
        self.disturb(what, change);
        assert_eq!(again() - before, 0.0, "{what}: positions computed again");
    }

    /// The same as [`Self::during_streams`], where positions may be computed again.
    fn disturb(&self, what: &str, change: impl FnOnce()) {
        let put_back = self.put_back();
        self.stream_through(what, change);
        let moved = self.put_back() - put_back;
        assert!(moved > 0.0, "{what}: no state was moved");
        println!("{what}: {moved} states were moved");
    }

    /// Changes something while streams run; they notice nothing. Some may end before anything happens.
    fn stream_through(&self, what: &str, change: impl FnOnce()) {
        let begin = self.drawn();
        let clients: Vec<_> = (0..STREAMS)
            .map(|seed| {
                let server = self.server.clone();
                std::thread::spawn(move || answer(&server, seed))
            })
            .collect();
        until("tokens are drawn", || self.drawn() > begin + 40.0);
        let changed = Instant::now();
        change();
        println!("{what}: {:?}", changed.elapsed());
        for (client, expected) in clients.into_iter().zip(&self.expected) {
            assert_eq!(client.join().unwrap(), *expected, "{what}");
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // The server may still write to it.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn workers_are_drained_added_and_used_while_streams_run() {
    let mut moved = 0.0;
    for (arch, size) in kinds_of_state(0) {
        println!("{arch}:");
        let model = synth(arch, size);
        let workers: Vec<Running> = (0..3).map(|_| worker()).collect();
        let cluster = Cluster::start(arch, model.to_str().unwrap(), &workers, &[]);
        assert_eq!(cluster.stages(), 3);
        let address = |i: usize| workers[i].ready.trim();
        cluster.during_streams("drain", || {
            let said = cluster.ask(&["drain", address(1)]).unwrap();
            println!("{}", said.trim());
            assert!(said.contains("2 stages"), "{said}");
            let has = |what: &str| said.contains(what);
            assert!(has("of weights loaded before, 0 B in the pause"), "{said}");
            assert!(!has(" 0 B of weights") && has("of states moved"), "{said}");
        });
        let status = cluster.status();
        assert_eq!(cluster.stages(), 2, "{status}");
        assert!(status["drained"].to_string().contains(address(1)), "{status}");
        // A new one takes the drained one's place when it is told to.
        let fourth = worker();
        cluster.ask(&["add", fourth.ready.trim()]).unwrap();
        until("the new one is there", || {
            cluster.status()["spare"].to_string().contains(fourth.ready.trim())
        });
        cluster.during_streams("rebalance", || {
            let said = cluster.ask(&["rebalance"]).unwrap();
            println!("{}", said.trim());
            assert!(said.contains("3 stages"), "{said}");
        });
        // One is asked to leave: its layers move first, and it ends.
        let mut workers = workers;
        let leaver = workers.remove(2);
        // It says so in its next heartbeat, within a second: on a fast machine streams may end before.
        let put_back = cluster.put_back();
        cluster.stream_through("SIGTERM", || {
            signal("TERM", leaver.pid());
            until("two stages are left", || cluster.stages() == 2);
        });
        moved += cluster.put_back() - put_back;
        assert_eq!(cluster.server.metric("brigade_tokens_replayed_total"), 0.0);
        until("it has ended", || !brigade_tests::process::is_alive(leaver.pid()));
        assert_eq!(cluster.server.metric("brigade_requests_total{outcome=\"error\"}"), 0.0);
        std::fs::remove_file(model).unwrap();
    }
    println!("SIGTERM: {moved} states were moved");
    assert!(moved > 0.0, "no state was moved from any worker that was asked to leave");
}

fn layers_are_moved_by_order_while_streams_run() {
    for (arch, size) in kinds_of_state(1) {
        let model = synth(arch, size);
        let workers: Vec<Running> = (0..3).map(|_| worker()).collect();
        let cluster =
            Cluster::start(&format!("moved-{arch}"), model.to_str().unwrap(), &workers, &[]);
        let ends = || -> Vec<u64> {
            let status = cluster.status();
            let stages = status["stages"].as_array().unwrap();
            stages.iter().map(|stage| stage["layers"]["end"].as_u64().unwrap()).collect()
        };
        let before = ends();
        let (first, last) = (workers[0].ready.trim(), workers[2].ready.trim());
        // One layer of the middle worker goes to the first, and its other layers to the last.
        let one = format!("{}..{}", before[0], before[0] + 1);
        cluster.during_streams("move", || {
            let said = cluster.ask(&["move", &one, first]).unwrap();
            println!("{arch}: {}", said.trim());
            assert!(said.contains("of states moved"), "{said}");
        });
        let after = ends();
        assert_eq!(after[0], before[0] + 1, "{before:?} {after:?}");
        let rest = format!("{}..{}", after[0], before[1]);
        let said = cluster.ask(&["move", &rest, last]);
        match after.len() {
            3 => {
                println!("{arch}: {}", said.unwrap().trim());
                assert_eq!(ends(), [before[0] + 1, before[2]]);
            }
            // The middle had one layer only.
            _ => assert!(said.is_err(), "{said:?}"),
        }
        let refused = cluster.ask(&["move", "0..1", first]).unwrap_err();
        assert!(refused.contains("already"), "{refused}");
        assert_eq!(cluster.server.metric("brigade_requests_total{outcome=\"error\"}"), 0.0);
        std::fs::remove_file(model).unwrap();
    }
}

/// Adapters of layers move with them and are loaded ahead too. Each stream goes on with its own adapters.
fn layers_move_with_their_adapters_while_streams_run() {
    for (arch, size) in kinds_of_state(2) {
        let model = synth(arch, size);
        let file = model.to_str().unwrap();
        let adapters = ["1", "2"].map(|seed| format!("{file}-{seed}.gguf"));
        for (seed, out) in ["1", "2"].iter().zip(&adapters) {
            let made =
                run(&["synth", "--adapter-of", file, "--seed", seed, "--force", "--out", out]);
            assert!(made.status.success(), "{made:?}");
        }
        let lora = ["--lora", &adapters[0], "--lora", &adapters[1]];
        let workers: Vec<Running> = (0..3).map(|_| worker()).collect();
        let cluster = Cluster::start(&format!("adapted-{arch}"), file, &workers, &lora);
        let different: std::collections::BTreeSet<_> =
            cluster.expected.iter().map(|choices| choices[0]["text"].to_string()).collect();
        assert_eq!(different.len(), STREAMS);
        let address = |i: usize| workers[i].ready.trim();
        cluster.during_streams("drain", || {
            let said = cluster.ask(&["drain", address(1)]).unwrap();
            println!("{arch}: {}", said.trim());
            assert!(said.contains("of weights loaded before, 0 B in the pause"), "{said}");
        });
        assert_eq!(cluster.stages(), 2);
        assert_eq!(cluster.server.metric("brigade_requests_total{outcome=\"error\"}"), 0.0);
        std::fs::remove_file(&model).unwrap();
        adapters.iter().for_each(|file| std::fs::remove_file(file).unwrap());
    }
}

/// One of two equally fast workers says that it is four times as fast, and gets most layers. It loses some while
/// streams run.
fn a_worker_that_is_slower_than_it_says_loses_layers() {
    // Large enough that stages compute most of the time, on a busy machine too: less than a tenth tells nothing.
    let model = synth("llama", "0.1b");
    let claims = |speed: &str| {
        let args = ["worker", "--listen", "127.0.0.1:0", "--speed", speed];
        Running::start(&args, brigade_worker::run::READY_PREFIX)
    };
    // On one machine both are as fast.
    let workers = [claims("20,200"), claims("80,800")];
    let more = ["--rebalance", "auto", "--slow-after", "2s"];
    let addresses: Vec<String> = workers.iter().map(|w| w.ready.trim().to_owned()).collect();
    let cluster = Cluster::unasked("slow", model.to_str().unwrap(), &addresses, &more);
    let first = |cluster: &Cluster| cluster.status()["stages"][0]["layers"]["end"].as_u64();
    let deadline = Instant::now() + PATIENCE;
    // Before anything is computed: a slow machine may move layers during the first answers.
    let before = loop {
        assert!(Instant::now() < deadline, "no line is up: {}", cluster.status());
        if let Some(end) = first(&cluster) {
            break end;
        }
    };
    let cluster = cluster.asked();
    let moved = || first(&cluster).is_some_and(|end| end != before);
    // Streams follow each other without a pause, so that there is something to compute.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (seed, expected) in cluster.expected.iter().enumerate() {
            let (server, is_over) = (&cluster.server, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(answer(server, seed), *expected, "slow");
                }
            });
        }
        let deadline = Instant::now() + PATIENCE;
        while !moved() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(200));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(moved(), "nothing was moved: {}", cluster.status());
    let after = first(&cluster).unwrap();
    println!("the first stage had {before} layers, and has {after} now");
    assert!(after > before);
    assert_eq!(cluster.server.metric("brigade_requests_total{outcome=\"error\"}"), 0.0);
    std::fs::remove_file(model).unwrap();
}

/// Every worker is asked to leave, and started again at its address, one after the other, as in an upgrade.
fn workers_are_restarted_one_by_one_while_streams_run() {
    let model = synth("granitehybrid", "tiny");
    let mut workers: Vec<Running> = (0..3).map(|_| worker()).collect();
    let cluster = Cluster::start("restarted", model.to_str().unwrap(), &workers, &[]);
    assert_eq!(cluster.stages(), 3);
    for worker in &mut workers {
        let address = worker.ready.trim().to_owned();
        cluster.stream_through("restart", || {
            signal("TERM", worker.pid());
            until("it has ended", || !brigade_tests::process::is_alive(worker.pid()));
            // No other process takes the port before it is back.
            *worker = worker_at(&address);
            until("it may have layers again", || {
                let status = cluster.status();
                status["drained"] == json!([]) && status["spare"].to_string().contains(&address)
            });
        });
        assert_eq!(cluster.stages(), 2, "{}", cluster.status());
    }
    let said = cluster.ask(&["rebalance"]).unwrap();
    assert!(said.contains("3 stages"), "{said}");
    assert_eq!(cluster.server.metric("brigade_tokens_replayed_total"), 0.0);
    println!("{} states were moved", cluster.put_back());
    std::fs::remove_file(model).unwrap();
}

/// A line of the release before this one under a coordinator of this one, which is upgraded worker by worker.
fn workers_are_upgraded_one_by_one_while_streams_run() {
    let model = synth("llama", "tiny");
    let mut workers: Vec<Running> = (0..3).map(|_| worker()).collect();
    let olders: Vec<Older> =
        workers.iter().map(|w| Older::before(w.ready.trim().parse().unwrap())).collect();
    let seen: Vec<String> = olders.iter().map(|older| older.address.to_string()).collect();
    let cluster = Cluster::at("upgraded", model.to_str().unwrap(), &seen, &[]);
    assert_eq!(cluster.stages(), 3);
    let guided = json!({"prompt": "In the", "max_tokens": 3, "guidance_scale": 2});
    let reply = cluster.server.post("/v1/completions", &guided);
    assert!(
        reply.status == 400 && reply.body.contains("knows no guides; upgrade"),
        "{}",
        reply.body
    );
    for (i, older) in olders.iter().enumerate() {
        cluster.stream_through("upgrade", || {
            signal("TERM", workers[i].pid());
            until("it has ended", || !brigade_tests::process::is_alive(workers[i].pid()));
            println!("{} fields were lost on it", older.dropped());
            assert!(older.dropped() > 0, "the older release knew everything");
            older.upgrade();
            let address = workers[i].ready.trim().to_owned();
            workers[i] = worker_at(&address);
            until("it may have layers again", || {
                cluster.status()["spare"].to_string().contains(&seen[i])
            });
        });
        let said = cluster.ask(&["rebalance"]).unwrap();
        assert!(said.contains("3 stages"), "{said}");
    }
    assert_eq!(cluster.server.metric("brigade_tokens_replayed_total"), 0.0);
    assert_eq!(cluster.server.metric("brigade_requests_total{outcome=\"error\"}"), 0.0);
    let unknown: usize = olders.iter().map(Older::unknown).sum();
    assert_eq!(unknown, 0, "an older worker was asked for what it cannot do");
    assert_eq!(cluster.server.post("/v1/completions", &guided).status, 200);
    std::fs::remove_file(model).unwrap();
}

/// The only worker is asked to leave when there is no other one yet. One that comes while it is there takes its layers.
fn a_worker_that_leaves_hands_its_layers_to_one_that_comes_later() {
    let model = synth("granitehybrid", "tiny");
    let leaver = worker();
    let one = std::slice::from_ref(&leaver);
    let cluster = Cluster::start("later", model.to_str().unwrap(), one, &[]);
    let mut later = None;
    cluster.stream_through("SIGTERM, and another one comes", || {
        signal("TERM", leaver.pid());
        until("it is known that it leaves", || {
            cluster.status()["drained"].to_string().contains(leaver.ready.trim())
        });
        assert_eq!(cluster.stages(), 1, "it computes on, since nobody can take its layers");
        let comes = worker();
        cluster.ask(&["add", comes.ready.trim()]).unwrap();
        until("the other one has its layers", || {
            cluster.status()["stages"].to_string().contains(comes.ready.trim())
        });
        later = Some(comes);
    });
    until("it has ended", || !brigade_tests::process::is_alive(leaver.pid()));
    assert_eq!(cluster.server.metric("brigade_tokens_replayed_total"), 0.0);
    assert_eq!(cluster.server.metric("brigade_requests_total{outcome=\"error\"}"), 0.0);
    drop(later);
    std::fs::remove_file(model).unwrap();
}

/// Parting copies do not stay: after a change, checkpoints begin with the first page again.
fn checkpoints_go_on_after_a_planned_change() {
    let model = synth("granitehybrid", "tiny");
    let mut workers: Vec<Running> = (0..3).map(|_| worker()).collect();
    let more = ["--checkpoint", "buddy", "--checkpoint-every", "16", "--replace-after", "60"];
    let cluster = Cluster::start("checkpoints", model.to_str().unwrap(), &workers, &more);
    cluster.disturb("drain, and a loss", || {
        let said = cluster.ask(&["drain", workers[1].ready.trim()]).unwrap();
        println!("{}", said.trim());
        let drawn = cluster.drawn();
        until("checkpoints are taken", || cluster.drawn() > drawn + 60.0 * STREAMS as f64);
        let address = workers[2].ready.trim().to_owned();
        // There are more on a busy machine, where the line was begun anew in between.
        let begun = cluster.put_back();
        assert!(begun >= STREAMS as f64, "{begun}");
        workers[2] = {
            signal("KILL", workers[2].pid());
            until("it is gone", || cluster.stages() == 0);
            worker_at(&address)
        };
        until("streams go on from checkpoints", || cluster.put_back() > begun);
    });
    assert_eq!(cluster.server.metric("brigade_requests_total{outcome=\"error\"}"), 0.0);
    std::fs::remove_file(model).unwrap();
}

fn states_move_again_and_again() {
    let model = synth("granitehybrid", "tiny");
    let workers: Vec<Running> = (0..4).map(|_| worker()).collect();
    let cluster = Cluster::start("again", model.to_str().unwrap(), &workers, &[]);
    let on_line = || {
        let stages = cluster.status()["stages"].clone();
        stages.as_array().unwrap().iter().map(|s| s["worker"].to_string()).collect::<Vec<_>>()
    };
    let before = cluster.put_back();
    cluster.during_streams("two drains", || {
        for _ in 0..2 {
            let first = on_line()[0].trim_matches('"').to_owned();
            println!("{}", cluster.ask(&["drain", &first]).unwrap().trim());
        }
    });
    assert_eq!(cluster.put_back() - before, 2.0 * STREAMS as f64);
    std::fs::remove_file(model).unwrap();
}

/// A worker that fetches a state shows its key, also to a worker beside the line.
fn over_tls_states_move_from_a_worker_that_leaves() {
    let model = synth("llama", "tiny");
    let desk = secure::Cluster::new();
    let args = ["--expect", "3", "--keep", "0", "-m", model.to_str().unwrap()];
    let server = Server { process: desk.serve(&args) };
    let token = desk.token(&["--uses", "3"]);
    let workers = ["lab", "attic", "cellar"].map(|name| desk.worker(name, &token));
    server.wait_healthy(PATIENCE);
    let cluster = Cluster::of(server, PathBuf::from(desk.data("desk")));
    cluster.during_streams("drain", || {
        let said = cluster.ask(&["drain", workers[1].ready.trim()]).unwrap();
        println!("{}", said.trim());
    });
    assert!(cluster.server.metric("brigade_state_bytes_moved_total") > 0.0);
    std::fs::remove_file(model).unwrap();
}

/// Positions of each stream when its line changes; `BRIGADE_PAUSES_CONTEXT` sets others.
const CONTEXT: u64 = 512;

/// Drains a worker, and takes it in again as a new one; the longest gap in any stream each time.
fn gaps(arch: &str, context: u64) -> [Duration; 3] {
    let model = synth(arch, "0.6b");
    let workers: Vec<Running> = (0..3).map(|_| worker()).collect();
    let ctx = (context + 2048).to_string();
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("changes-{arch}-gaps"));
    let mut args = vec!["-m", model.to_str().unwrap(), "--max-seqs", "4", "--keep", "0"];
    args.extend(["--ctx", &ctx, "--data-dir", folder.to_str().unwrap()]);
    workers.iter().for_each(|worker| args.extend(["--worker", worker.ready.trim()]));
    let server = Arc::new(Server::start(&args));
    let cluster = Cluster { server: server.clone(), folder, expected: Vec::new() };
    let mut streams = Streams::start(&server.process.ready, STREAMS, context, 2000);
    streams.wait(Instant::now(), 10);
    let mut during = |question: &[&str]| {
        let begun = Instant::now();
        println!("{arch}: {}", cluster.ask(question).unwrap().trim());
        streams.wait(Instant::now(), 3);
        streams.longest_gap(begun)
    };
    let drained = during(&["drain", workers[1].ready.trim()]);
    let fourth = worker();
    cluster.ask(&["add", fourth.ready.trim()]).unwrap();
    until("the new one is there", || cluster.status()["spare"].to_string().contains("127"));
    let taken_in = during(&["rebalance"]);
    let first = &cluster.status()["stages"][0];
    let end = first["layers"]["end"].as_u64().unwrap();
    let address = first["worker"].as_str().unwrap().trim_start_matches("worker ");
    let moved = during(&["move", &format!("{end}..{}", end + 2), address]);
    assert_eq!(server.metric("brigade_tokens_replayed_total"), 0.0);
    std::fs::remove_file(model).unwrap();
    [drained, taken_in, moved]
}

fn pauses_of_planned_changes() {
    let context = std::env::var("BRIGADE_PAUSES_CONTEXT").map_or(CONTEXT, |n| n.parse().unwrap());
    let rows = ["llama", "granitehybrid"].map(|arch| (arch, gaps(arch, context)));
    println!("| 0.6b model | {STREAMS} streams behind | drain | add, rebalance | move 2 layers |");
    println!("|---|---|---|---|---|");
    for (arch, [drained, taken_in, moved]) in rows {
        println!("| {arch} | {context} tokens | {drained:.2?} | {taken_in:.2?} | {moved:.2?} |");
    }
}

fn orders_that_cannot_be_are_refused_with_the_reason() {
    let model = synth("llama", "tiny");
    let workers: Vec<Running> = (0..2).map(|_| worker()).collect();
    let cluster = Cluster::start("refused", model.to_str().unwrap(), &workers, &[]);
    let error = cluster.ask(&["drain", "10.1.1.1:1"]).unwrap_err();
    assert!(error.contains("no worker is called \"10.1.1.1:1\""), "{error}");
    assert!(error.contains("digits or more of its key"), "{error}");
    cluster.ask(&["drain", workers[0].ready.trim()]).unwrap();
    let error = cluster.ask(&["drain", workers[1].ready.trim()]).unwrap_err();
    assert!(error.contains("the other workers do not suffice"), "{error}");
    let said = cluster.ask(&["rebalance"]).unwrap();
    assert!(said.contains("nothing is moved"), "{said}");
    assert_eq!(cluster.stages(), 1);
    // The same over HTTP, where orders need a key.
    let address = cluster.server.admin("/admin/cluster");
    let status = get(&address).unwrap();
    let mut seen: Value = serde_json::from_str(&status.body).unwrap();
    let mut asked = cluster.status();
    // When each was last heard from differs from look to look.
    for status in [&mut seen["status"], &mut asked] {
        status["nodes"] = Value::Null;
    }
    assert_eq!((status.status, &seen["status"]), (200, &asked), "{}", status.body);
    assert_eq!(post(&address, "\"rebalance\"").unwrap().status, 401);
    let made =
        run(&["key", "create", "boss", "--admin", "--data-dir", cluster.folder.to_str().unwrap()]);
    let bearer = format!("Bearer {}", String::from_utf8(made.stdout).unwrap().trim());
    let order = |body: &str| post_with(&address, body, "authorization", &bearer).unwrap();
    until("the key is in force", || order("{}").status == 400);
    let done = order("\"rebalance\"");
    assert!(done.status == 200 && done.body.contains("nothing is moved"), "{}", done.body);
    let refused = order(&json!({"drain": {"worker": workers[1].ready.trim()}}).to_string());
    assert!(refused.status == 409 && refused.body.contains("do not suffice"), "{}", refused.body);
    let nowhere = run(&["cluster", "status", "--data-dir", "/nonexistent"]);
    assert!(!nowhere.status.success());
    std::fs::remove_file(model).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        workers_are_drained_added_and_used_while_streams_run,
        layers_are_moved_by_order_while_streams_run,
        layers_move_with_their_adapters_while_streams_run,
        workers_are_restarted_one_by_one_while_streams_run,
        workers_are_upgraded_one_by_one_while_streams_run,
        a_worker_that_leaves_hands_its_layers_to_one_that_comes_later,
        checkpoints_go_on_after_a_planned_change,
        states_move_again_and_again,
        over_tls_states_move_from_a_worker_that_leaves,
        orders_that_cannot_be_are_refused_with_the_reason;
    alone:
        // It compares how fast two workers are.
        a_worker_that_is_slower_than_it_says_loses_layers,
        pauses_of_planned_changes ignored("takes minutes: prints the table of pauses");
];

//! Planned changes while streams run: workers are drained, added and asked to leave; every stream goes on with the bytes
//! of an undisturbed run, and only what moves is loaded.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_tests::process::{Running, Server, get, post, post_with, run, signal, synth};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);
const STREAMS: usize = 4;

fn worker() -> Running {
    Running::start(&["worker", "--listen", "127.0.0.1:0"], brigade_worker::run::READY_PREFIX)
}

fn answer(server: &Server, seed: usize) -> Value {
    let body = json!({
        "prompt": "In the", "max_tokens": 400, "temperature": 0.8, "seed": seed, "ignore_eos": true, "logprobs": 1,
    });
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
    fn start(name: &str, model: &str, workers: &[Running]) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("changes-{name}-{}", std::process::id()));
        let mut args = vec!["-m", model, "--keep", "0", "--data-dir", folder.to_str().unwrap()];
        workers.iter().for_each(|worker| args.extend(["--worker", worker.ready.trim()]));
        let server = Arc::new(Server::start(&args));
        let expected = (0..STREAMS).map(|seed| answer(&server, seed)).collect();
        Self { server, folder, expected }
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

    /// Runs `change` while all streams draw; they must get what they got without it, and nothing is computed again.
    fn during_streams(&self, what: &str, change: impl FnOnce()) {
        let drawn = || self.server.metric("brigade_generated_tokens_total");
        let begin = drawn();
        let put_back = || self.server.metric("brigade_sequences_put_back_total{outcome=\"done\"}");
        let again = || self.server.metric("brigade_tokens_replayed_total");
        let before = (put_back(), again());
        let clients: Vec<_> = (0..STREAMS)
            .map(|seed| {
                let server = self.server.clone();
                std::thread::spawn(move || answer(&server, seed))
            })
            .collect();
        until("tokens are drawn", || drawn() > begin + 40.0);
        let changed = Instant::now();
        change();
        println!("{what}: {:?}", changed.elapsed());
        for (client, expected) in clients.into_iter().zip(&self.expected) {
            assert_eq!(client.join().unwrap(), *expected, "{what}");
        }
        let moved = put_back() - before.0;
        assert!(moved > 0.0, "{what}: no state was moved");
        assert_eq!(again() - before.1, 0.0, "{what}: positions computed again");
        println!("{what}: {moved} states were moved");
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

#[test]
fn workers_are_drained_added_and_used_while_streams_run() {
    let kinds = [
        ("llama", "tiny"),
        ("granitehybrid", "tiny"),
        ("kimi-linear", "tiny-moe"),
        ("rwkv7", "tiny"),
    ];
    for (arch, size) in kinds {
        println!("{arch}:");
        let model = synth(arch, size);
        let workers: Vec<Running> = (0..3).map(|_| worker()).collect();
        let cluster = Cluster::start(arch, model.to_str().unwrap(), &workers);
        assert_eq!(cluster.stages(), 3);
        let address = |i: usize| workers[i].ready.trim();
        cluster.during_streams("drain", || {
            let said = cluster.ask(&["drain", address(1)]).unwrap();
            println!("{}", said.trim());
            assert!(said.contains("2 stages"), "{said}");
            assert!(
                said.contains("of weights loaded") && said.contains("of states moved"),
                "{said}"
            );
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
        cluster.during_streams("SIGTERM", || {
            signal("TERM", leaver.pid());
            until("two stages are left", || cluster.stages() == 2);
        });
        until("it has ended", || !brigade_tests::process::is_alive(leaver.pid()));
        assert_eq!(cluster.server.metric("brigade_requests_total{outcome=\"error\"}"), 0.0);
        std::fs::remove_file(model).unwrap();
    }
}

#[test]
fn orders_that_cannot_be_are_refused_with_the_reason() {
    let model = synth("llama", "tiny");
    let workers: Vec<Running> = (0..2).map(|_| worker()).collect();
    let cluster = Cluster::start("refused", model.to_str().unwrap(), &workers);
    let error = cluster.ask(&["drain", "10.1.1.1:1"]).unwrap_err();
    assert!(error.contains("no worker is called 10.1.1.1:1"), "{error}");
    cluster.ask(&["drain", workers[0].ready.trim()]).unwrap();
    let error = cluster.ask(&["drain", workers[1].ready.trim()]).unwrap_err();
    assert!(error.contains("the other workers do not suffice"), "{error}");
    let said = cluster.ask(&["rebalance"]).unwrap();
    assert!(said.contains("nothing is moved"), "{said}");
    assert_eq!(cluster.stages(), 1);
    // The same over HTTP, where orders need a key.
    let address = cluster.server.admin("/admin/cluster");
    let status = get(&address).unwrap();
    let seen: Value = serde_json::from_str(&status.body).unwrap();
    assert_eq!((status.status, &seen["status"]), (200, &cluster.status()), "{}", status.body);
    assert_eq!(post(&address, "\"rebalance\"").unwrap().status, 401);
    let made =
        run(&["key", "create", "boss", "--admin", "--data-dir", cluster.folder.to_str().unwrap()]);
    let bearer = format!("Bearer {}", String::from_utf8(made.stdout).unwrap().trim());
    let order = |body: &str| post_with(&address, body, ("authorization", &bearer)).unwrap();
    until("the key is in force", || order("{}").status == 400);
    let done = order("\"rebalance\"");
    assert!(done.status == 200 && done.body.contains("nothing is moved"), "{}", done.body);
    let refused = order(&json!({"drain": {"worker": workers[1].ready.trim()}}).to_string());
    assert!(refused.status == 409 && refused.body.contains("do not suffice"), "{}", refused.body);
    let nowhere = run(&["cluster", "status", "--data-dir", "/nonexistent"]);
    assert!(!nowhere.status.success());
    std::fs::remove_file(model).unwrap();
}

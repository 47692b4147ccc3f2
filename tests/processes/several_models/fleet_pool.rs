//! Several models whose lines share the workers that join.

use std::time::{Duration, Instant};

use brigade_tests::fakes::{Fake, Phase, hello, join};
use brigade_tests::process::{Running, Server, get, signal};
use brigade_tests::secure::Cluster;
use brigade_tests::up_share::{free_address, serve, worker};
use serde_json::{Value, json};

use crate::several_models::fleet::{
    PATIENCE, Scratch, chat, content, said, stream, wait_for_models, words,
};

/// How often something is looked at that takes a while.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A server of several models with a cluster, and the workers that have joined it.
pub struct Fleet {
    pub server: Server,
    pub cluster: Cluster,
    pub token: String,
    workers: Vec<(String, Running)>,
}

impl Fleet {
    /// A server with this file of options, without workers yet.
    pub fn start(config: &str) -> Self {
        let cluster = Cluster::new();
        let process = cluster.serve(&["--config", config]);
        let token = cluster.token(&["--uses", "9"]);
        Self { server: Server { process }, cluster, token, workers: Vec::new() }
    }

    /// Joins `n` more workers of the same memory.
    fn join(&mut self, n: usize) {
        self.join_with(n, &[]);
    }

    /// The same with more options.
    pub fn join_with(&mut self, n: usize, more: &[&str]) {
        for _ in 0..n {
            let name = format!("w{}", self.workers.len());
            let more = [&["--memory", "1G", "--speed", "20,200"], more].concat();
            let args = self.cluster.worker_args(&name, Some(&self.token), &more);
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let worker = Running::start(&args, brigade_tests::secure::READY);
            self.workers.push((name, worker));
        }
    }

    /// A model's line, as an operator sees it.
    pub fn status(&self, model: &str) -> Value {
        self.server.line_status(model)
    }

    /// The workers of a model's line.
    pub fn line(&self, model: &str) -> Vec<String> {
        self.server.line_workers(model)
    }

    /// The workers on no line, as a model's line reports them.
    pub fn spares(&self, model: &str) -> Vec<String> {
        let status = self.status(model);
        let nodes = status["nodes"].as_array().unwrap().iter();
        let spare = nodes.filter(|node| node["state"] == "spare");
        spare.map(|node| node["name"].as_str().unwrap().to_owned()).collect()
    }

    fn pid(&self, name: &str) -> u32 {
        self.workers.iter().find(|(worker, _)| worker == name).unwrap().1.pid()
    }

    pub fn wait(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(self) {
            assert!(Instant::now() < end, "{what}");
            std::thread::sleep(LOOK_EVERY);
        }
    }

    pub fn down(&self, model: &str) -> f64 {
        self.server.metric(&format!("brigade_line_down_total{{model=\"{model}\"}}"))
    }
}

fn three_models_share_workers_for_two_of_them() {
    let mut scratch = Scratch::new("pool");
    let hybrid = scratch.synth("granitehybrid");
    let wide = "load = \"demand\"\nctx = 512\nexpect = 2";
    let narrow = "load = \"demand\"\nctx = 512";
    let names = ["wide", "first", "hybrid"];
    let config = scratch.config(&[
        ("wide", None, wide),
        ("first", None, narrow),
        ("hybrid", Some(&hybrid), narrow),
    ]);
    let mut fleet = Fleet::start(&config);
    fleet.join(3);
    // Each in the place of another, or beside it.
    let wide = said(&fleet.server, "wide", 1);
    let first = said(&fleet.server, "first", 1);
    assert_eq!((fleet.line("wide").len(), fleet.line("first").len()), (2, 1));
    assert_eq!(wide[1], first[1], "the same weights, over two workers and over one");
    let hybrid_said = said(&fleet.server, "hybrid", 1);
    let loaded = || -> Vec<String> {
        let words = words(&fleet.server).into_iter();
        words.filter(|(_, word)| word == "loaded").map(|(name, _)| name).collect()
    };
    assert_eq!(loaded(), ["first", "hybrid"], "what was used least recently has gone");
    assert_eq!(fleet.spares("first").len(), 1, "it had two workers");
    // All at once, in no order: each answer is its model's, and no request waits for ever.
    let answers: Vec<(usize, Value)> = std::thread::scope(|scope| {
        let server = &fleet.server;
        let asking: Vec<_> =
            (0..12).map(|i| scope.spawn(move || (i % 3, said(server, names[i % 3], 1)))).collect();
        asking.into_iter().map(|asked| asked.join().unwrap()).collect()
    });
    let alone =
        Server::start(&["-m", hybrid.to_str().unwrap(), "--workers", "1", "--alias", "hybrid"]);
    assert_eq!(said(&alone, "hybrid", 1), hybrid_said);
    for (model, answer) in answers {
        assert_eq!(&answer, [&wide, &first, &hybrid_said][model], "{}", names[model]);
    }
}

fn joined_machines_are_known_while_nothing_is_loaded() {
    let scratch = Scratch::new("pool-nodes");
    let config = scratch.config(&["first", "second"].map(|name| (name, None, "load = \"demand\"")));
    let mut fleet = Fleet::start(&config);
    fleet.join(1);
    let nodes =
        || -> Value { serde_json::from_str(&fleet.cluster.admin(&["nodes", "--json"])).unwrap() };
    fleet.wait("it is a spare", |_| {
        nodes()[0]["state"].as_str().is_some_and(|s| s.starts_with("spare"))
    });
    let revoked = fleet.cluster.admin(&["revoke", "w0"]);
    assert!(revoked.contains("revoked w0"), "{revoked}");
    // A worker whose certificate was revoked is not lent.
    fleet.wait("it is out", |_| nodes()[0]["heard_ms_ago"].is_null());
    assert_eq!(nodes()[0]["standing"], "revoked");
}

fn a_killed_coordinator_takes_its_workers_again() {
    let scratch = Scratch::new("pool-restart");
    let (mut fleet, undisturbed) = two_and_a_spare(&scratch);
    let lines = ["first", "second"].map(|model| fleet.line(model));
    signal("KILL", fleet.server.process.pid());
    let config = scratch.folder.join("brigade.toml");
    let process = fleet.cluster.serve(&["--config", config.to_str().unwrap()]);
    fleet.server = Server { process };
    wait_for_models(&fleet.server, &["first", "second"]);
    fleet.wait("the third joins too", |fleet| fleet.spares("first").len() == 1);
    assert_ne!(fleet.line("first"), fleet.line("second"));
    assert_eq!(lines.map(|line| line.len()), [1, 1]);
    while_both_answer(&fleet, &undisturbed, || ());
}

fn a_worker_that_accepts_nothing_is_replaced() {
    let scratch = Scratch::new("pool-liar");
    let config = scratch.config(&["first", "second"].map(|name| (name, None, "ctx = 512")));
    let control = free_address();
    let process = serve(&["--config", &config, "--control", &control]);
    let server = Server { process };
    let own = ["--memory", "1G", "--speed", "20,200"];
    let healthy = [0, 1].map(|_| worker("127.0.0.1:0", &own));
    let address = |worker: &Running| worker.ready.trim().to_owned();
    let control = control.parse().unwrap();
    // It is the smallest, and so the first that is lent.
    let mut good = hello(&address(&healthy[0]).parse().unwrap());
    let own = good.capabilities.as_mut().unwrap();
    (own.memory_limit, own.memory_free) = (own.memory_limit / 2, own.memory_limit / 2);
    let liar = Fake::start(Phase::NoPrepare(Box::new(good)));
    join(&control, &liar.address.to_string()).unwrap();
    let waits = || get(&server.admin("/health?model=first")).unwrap().body;
    let end = Instant::now() + PATIENCE;
    while !waits().contains(&format!("worker {}", liar.address)) {
        assert!(Instant::now() < end, "it is not lent: {}", waits());
        std::thread::sleep(LOOK_EVERY);
    }
    for healthy in &healthy {
        join(&control, &address(healthy)).unwrap();
    }
    wait_for_models(&server, &["first", "second"]);
    assert_eq!(said(&server, "first", 1)[1], said(&server, "second", 1)[1]);
}

fn an_idle_model_goes_for_one_that_has_lost_its_worker() {
    let scratch = Scratch::new("pool-yields");
    let config = scratch.config(&[
        ("first", None, "ctx = 1024"),
        ("idle", None, "load = \"demand\"\nctx = 1024"),
        ("stays", None, "load = \"demand\"\nctx = 1024"),
    ]);
    let mut fleet = Fleet::start(&config);
    fleet.join(3);
    wait_for_models(&fleet.server, &["first"]);
    let [idle, stays] = ["idle", "stays"].map(|model| said(&fleet.server, model, 1));
    assert_eq!(idle[1], stays[1]);
    let of_idle = fleet.line("idle");
    fleet.cluster.admin(&["cluster", "pin", "stays"]);
    signal("KILL", fleet.pid(&fleet.line("first")[0]));
    fleet.wait("it has the worker of the idle one", |fleet| fleet.line("first") == of_idle);
    let loaded: Vec<_> = words(&fleet.server).into_iter().map(|(_, word)| word).collect();
    assert_eq!(loaded[1..], ["unloaded", "loaded"]);
    assert_eq!(said(&fleet.server, "first", 1)[1], idle[1]);
}

/// A long answer of a model.
pub fn long(model: &str) -> Value {
    json!({ "model": model, "prompt": "In the beginning", "max_tokens": 700, "seed": 3, "ignore_eos": true })
}

/// Two models with a worker each, and a spare one; and the answers of both.
fn two_and_a_spare(scratch: &Scratch) -> (Fleet, Vec<u64>) {
    let config = scratch.config(&[("first", None, "ctx = 1024"), ("second", None, "ctx = 1024")]);
    let mut fleet = Fleet::start(&config);
    fleet.join(3);
    wait_for_models(&fleet.server, &["first", "second"]);
    let undisturbed = stream(&fleet.server.url("/v1/completions"), &long("first"), |_| {});
    assert_eq!(undisturbed.len(), 700);
    (fleet, undisturbed)
}

/// Streams of both models while something happens to the first one's worker.
pub fn while_both_answer(fleet: &Fleet, undisturbed: &[u64], happens: impl FnOnce() + Send) {
    let mut happens = Some(happens);
    let url = fleet.server.url("/v1/completions");
    let seen = move |n: usize| {
        if n >= 100
            && let Some(happens) = happens.take()
        {
            happens();
        }
    };
    let [first, second] = std::thread::scope(|scope| {
        let second = scope.spawn(|| stream(&url, &long("second"), |_| {}));
        let first = scope.spawn(|| stream(&url, &long("first"), seen));
        [first.join().unwrap(), second.join().unwrap()]
    });
    assert_eq!(first, undisturbed, "the stream of the model whose worker goes");
    assert_eq!(second, undisturbed, "the other's, which has the same weights");
}

fn a_killed_workers_line_goes_on_with_a_spare() {
    let scratch = Scratch::new("pool-killed");
    let (mut fleet, undisturbed) = two_and_a_spare(&scratch);
    let (first, second, spares) =
        (fleet.line("first"), fleet.line("second"), fleet.spares("first"));
    assert_eq!((first.len(), second.len(), spares.len()), (1, 1, 1));
    while_both_answer(&fleet, &undisturbed, || signal("KILL", fleet.pid(&first[0])));
    assert_eq!(fleet.line("first"), spares, "it goes on with the spare");
    assert_eq!(fleet.line("second"), second);
    assert_eq!((fleet.down("first"), fleet.down("second")), (1.0, 0.0));
    // The next worker is a spare for both.
    fleet.join(1);
    fleet.wait("it is a spare", |fleet| fleet.spares("second") == ["w3"]);
    while_both_answer(&fleet, &undisturbed, || signal("KILL", fleet.pid(&spares[0])));
    assert_eq!(fleet.line("first"), ["w3"]);
}

fn a_worker_that_leaves_hands_its_layers_to_a_spare() {
    let scratch = Scratch::new("pool-leaves");
    let (fleet, undisturbed) = two_and_a_spare(&scratch);
    let (first, spares) = (fleet.line("first"), fleet.spares("first"));
    while_both_answer(&fleet, &undisturbed, || signal("TERM", fleet.pid(&first[0])));
    fleet.wait("its layers are the spare's", |fleet| fleet.line("first") == spares);
    assert_eq!(fleet.down("second"), 0.0);
    // An operator's order waits for a spare too, and is told if there is none.
    let drain = |model: &str, worker: &str| {
        let reply = brigade_tests::process::run(&[
            "cluster",
            "drain",
            worker,
            "--model",
            model,
            "--data-dir",
            &fleet.cluster.data("desk"),
        ]);
        (reply.status.success(), String::from_utf8(reply.stderr).unwrap())
    };
    let (done, why) = drain("first", &spares[0]);
    assert!(!done && why.contains("do not suffice"), "{why}");
}

fn a_drained_worker_waits_for_a_spare() {
    let scratch = Scratch::new("pool-drained");
    let (fleet, undisturbed) = two_and_a_spare(&scratch);
    let (first, spares) = (fleet.line("first"), fleet.spares("first"));
    while_both_answer(&fleet, &undisturbed, || {
        let done = fleet.cluster.admin(&["cluster", "drain", &first[0], "--model", "first"]);
        assert!(done.contains("is drained"), "{done}");
    });
    assert_eq!(fleet.line("first"), spares);
}

fn a_model_waits_for_a_worker_that_joins_late() {
    let scratch = Scratch::new("pool-late");
    let config = scratch.config(&[
        ("asked", None, "load = \"demand\"\nctx = 512\nexpect = 2"),
        ("first", None, "ctx = 512"),
    ]);
    let mut fleet = Fleet::start(&config);
    let health = get(&fleet.server.url("/health?model=first")).unwrap();
    assert_eq!(health.status, 503, "{}", health.body);
    fleet.join(1);
    wait_for_models(&fleet.server, &["first"]);
    let url = fleet.server.url("/v1/chat/completions");
    let (asked, late) = std::thread::scope(|scope| {
        let body = chat("asked", 1);
        let asked =
            scope.spawn(move || brigade_tests::process::post(&url, &body.to_string()).unwrap());
        std::thread::sleep(Duration::from_secs(1));
        // A model that is loaded is not held up by one that waits.
        let first = said(&fleet.server, "first", 1);
        fleet.join(2);
        (asked.join().unwrap(), first)
    });
    assert_eq!(asked.status, 200, "{}", asked.body);
    let asked: Value = serde_json::from_str(&asked.body).unwrap();
    assert_eq!(content(&asked)[1], late[1], "both are the demo");
    assert_eq!(fleet.line("asked").len(), 2);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: three_models_share_workers_for_two_of_them, a_killed_workers_line_goes_on_with_a_spare,
        a_worker_that_leaves_hands_its_layers_to_a_spare, a_drained_worker_waits_for_a_spare,
        a_model_waits_for_a_worker_that_joins_late, joined_machines_are_known_while_nothing_is_loaded,
        an_idle_model_goes_for_one_that_has_lost_its_worker, a_killed_coordinator_takes_its_workers_again, a_worker_that_accepts_nothing_is_replaced;
];

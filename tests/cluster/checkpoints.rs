//! Checkpoints: when a worker is lost, streams go on from copies of their states. The bytes are those of an undisturbed
//! run, and fewer positions are computed again than the streams' prompts have.
//!
//! The table of pauses and the one of what checkpoints cost take more than half an hour each. `.ci/nightly` prints those of
//! one architecture (`pauses`, `pauses-hybrid`, `checkpoints-cost`, `checkpoints-cost-hybrid`).

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use brigade_proto::address::Address;
use brigade_proto::copies::copies_client::CopiesClient;
use brigade_proto::copies::{FetchRequest, KeepOpen, KeepRequest, keep_request};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::tls::Role;
use brigade_tests::fakes::runtime;
use brigade_tests::process::{
    Running, Server, brigade, get, kinds_of_state, post, resident, signal, synth,
};
use brigade_tests::secure::{Cluster, Somebody};
use brigade_tests::streams::{Streams, prompt};
use brigade_tests::up_share::{free_address, wait_up};
use brigade_worker::records::folder::checkpoints;
use serde_json::{Value, json};

/// How long anything may take on a machine that runs other tests.
const PATIENCE: Duration = Duration::from_secs(120);

/// The beginnings of the ready lines of a server and of a worker.
const SERVING: &str = "brigade serve listening on ";
const WORKER_READY: &str = "brigade worker ready on ";

/// Number of streams at once.
const STREAMS: u64 = 8;

/// Positions of each stream's prompt: several pages, and far more than lie between two checkpoints.
const PROMPT: u64 = 300;

/// Tokens that each request draws.
const TOKENS: usize = 260;

/// Tokens that each stream has drawn, on average, when the worker is lost: another checkpoint after its prompt's.
const UNDER_WAY: f64 = 70.0;

/// Tokens of a stream between two checkpoints of recurrent states.
const EVERY: &str = "32";

/// Requests of every kind.
fn requests() -> Vec<Value> {
    let request = |i: u64, more: Value| {
        let mut body = json!({
            "prompt": prompt(i, PROMPT + 7 * i), "max_tokens": TOKENS, "temperature": 0.9, "seed": i,
            "ignore_eos": true,
        });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    vec![
        request(1, json!({})),
        request(2, json!({"logprobs": 3})),
        request(3, json!({"n": 2})),
        request(4, json!({"repeat_penalty": 1.2, "presence_penalty": 0.3})),
        request(5, json!({"temperature": 0})),
        request(6, json!({"temperature": 0, "logprobs": 1})),
        request(7, json!({"checkpoint": false})),
        request(8, json!({"guidance_scale": 1.5, "negative_prompt": "abc", "max_tokens": 30})),
    ]
}

/// The answer to a request.
#[derive(Debug)]
struct Answer {
    /// The part that must be the same, byte for byte.
    choices: Value,
    /// Positions computed again, of all choices.
    again: u64,
    /// Positions of the prompt, of all choices.
    prompt: u64,
}

fn ask(url: &str, body: &Value) -> Answer {
    let reply = post(&format!("{url}/v1/completions"), &body.to_string()).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    let json: Value = serde_json::from_str(&reply.body).unwrap();
    let usage = |name: &str| json["usage"][name].as_u64().unwrap_or(0);
    let n = body["n"].as_u64().unwrap_or(1);
    let (again, prompt) = (usage("recomputed_tokens"), n * usage("prompt_tokens"));
    Answer { choices: json["choices"].clone(), again, prompt }
}

fn metric(server: &Running, name: &str) -> f64 {
    let text = get(&format!("{}/metrics", server.admin())).unwrap().body;
    let line = text.lines().find(|l| l.strip_prefix(name).is_some_and(|r| r.starts_with(' ')));
    line.and_then(|l| l.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

/// Runs all requests, has `lose` take a worker away in the midst of them, and compares answers. Fewer positions are
/// computed again than the prompts alone have: without checkpoints it is always more.
fn go_on(server: &Running, expected: &[Value], lose: impl FnOnce()) {
    let [put_back, again, prompts] = answers_go_on(server, expected, lose);
    assert!(put_back >= 4, "{put_back} of {STREAMS} sequences were put back");
    assert!(2 * again < prompts, "{again} of {prompts}: as much as without checkpoints");
}

/// The same as [`go_on`], without a limit of positions that are computed again. Returns how many sequences were put
/// back, how many positions were computed again, and how many their prompts have.
fn answers_go_on(server: &Running, expected: &[Value], lose: impl FnOnce()) -> [u64; 3] {
    let url = &server.ready;
    let drawn = || metric(server, "brigade_generated_tokens_total");
    let put_back = || metric(server, "brigade_sequences_put_back_total{outcome=\"done\"}");
    let (begin, before) = (drawn(), put_back());
    let clients: Vec<_> = requests()
        .into_iter()
        .map(|body| {
            let url = url.clone();
            std::thread::spawn(move || ask(&url, &body))
        })
        .collect();
    let deadline = Instant::now() + PATIENCE;
    while drawn() < begin + UNDER_WAY * STREAMS as f64 {
        assert!(Instant::now() < deadline, "no tokens are drawn");
        std::thread::sleep(Duration::from_millis(2));
    }
    let lost = Instant::now();
    lose();
    let answers: Vec<Answer> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    let took = lost.elapsed();
    for (i, (answer, expected)) in answers.iter().zip(expected).enumerate() {
        assert_eq!(answer.choices, *expected, "request {i}");
    }
    let lost: Vec<&Answer> = answers.iter().filter(|answer| answer.again > 0).collect();
    let again: u64 = lost.iter().map(|answer| answer.again).sum();
    let prompts: u64 = lost.iter().map(|answer| answer.prompt).sum();
    let put_back = put_back() - before;
    println!(
        "  {} requests were on the line, answered {took:?} later; {put_back} sequences were put back; {again} \
         positions computed again, their prompts have {prompts}",
        lost.len()
    );
    [put_back as u64, again, prompts]
}

fn expected(url: &str) -> Vec<Value> {
    requests().iter().map(|body| ask(url, body).choices).collect()
}

/// Cut by hand: a worker that comes back measures its speed anew, and the planner might cut otherwise.
const CUT: [&str; 2] = ["--tensor-split", "1,1,1"];

fn serve_args<'a>(mode: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let more = [more, &CUT].concat();
    let base = ["--max-seqs", "8", "--keep", "0", "--ctx", "1024", "--checkpoint-every", EVERY];
    base.into_iter().chain(["--checkpoint", mode]).chain(more).collect()
}

/// Each of three local workers is lost once, and started again by the coordinator.
fn every_worker_comes_back(model: Option<&Path>) {
    let mut more = vec!["--workers", "3"];
    more.extend(model.iter().flat_map(|path| ["-m", path.to_str().unwrap()]));
    let server = Server::start(&serve_args("buddy", &more));
    let expected = expected(&server.process.ready);
    for which in 0..3 {
        println!("  worker {which} is killed:");
        // Those that were started again come last.
        go_on(&server.process, &expected, || signal("KILL", server.process.children()[0]));
    }
    assert_eq!(metric(&server.process, "brigade_requests_total{outcome=\"error\"}"), 0.0);
}

/// Streams that run ahead when a worker is lost give the same answers, with copies and without.
fn drafts_change_no_answer_when_workers_are_lost() {
    for (arch, mode) in [("llama", "buddy"), ("granitehybrid", "buddy"), ("rwkv7", "off")] {
        let model = synth(arch, "tiny");
        let path = model.to_str().unwrap();
        let more = ["--workers", "3", "--max-seqs", "14", "--checkpoint", mode, "-m", path];
        let base =
            ["--speculate", "auto", "--keep", "0", "--ctx", "1024", "--checkpoint-every", EVERY];
        let server = Server::start(&[&base[..], &more, &CUT].concat());
        let expected = expected(&server.process.ready);
        println!("{arch}:");
        for _ in 0..2 {
            answers_go_on(&server.process, &expected, || {
                signal("KILL", server.process.children()[0]);
            });
        }
        assert_eq!(metric(&server.process, "brigade_requests_total{outcome=\"error\"}"), 0.0);
        let text = get(&format!("{}/metrics", server.process.admin())).unwrap().body;
        let counts = text.lines().filter_map(|line| {
            line.strip_prefix("brigade_drafts_total{outcome=\"right\"")?
                .rsplit(' ')
                .next()?
                .parse::<f64>()
                .ok()
        });
        let right: f64 = counts.sum();
        assert!(right > 0.0, "{arch}");
        std::fs::remove_file(model).unwrap();
    }
}

fn streams_of_the_demo_model_go_on_from_their_neighbours_copies() {
    every_worker_comes_back(None);
}

fn streams_of_every_kind_of_state_go_on_from_copies() {
    for (arch, size) in kinds_of_state(3) {
        let model = synth(arch, size);
        println!("{arch}:");
        every_worker_comes_back(Some(&model));
        std::fs::remove_file(model).unwrap();
    }
}

/// A line of workers that joined, cut by hand, and a spare.
struct Joined {
    server: Running,
    control: String,
    workers: Vec<Running>,
}

impl Joined {
    /// A line of `n` workers and a spare.
    fn start(n: usize, args: &[&str]) -> Self {
        let mut joined = Self::start_alone(n, args);
        let control = joined.control.clone();
        joined.join(&control);
        let deadline = Instant::now() + PATIENCE;
        while metric(&joined.server, "brigade_workers{state=\"spare\"}") < 1.0 {
            assert!(Instant::now() < deadline, "the spare does not join");
            std::thread::sleep(Duration::from_millis(20));
        }
        joined
    }

    /// A line of `n` workers.
    fn start_alone(n: usize, args: &[&str]) -> Self {
        let control = free_address();
        let all = [&["serve", "--listen", "127.0.0.1:0", "--control", &control], args].concat();
        let server = Running::start(&all, SERVING);
        let mut joined = Self { server, control: control.clone(), workers: Vec::new() };
        for _ in 0..n {
            joined.join(&control);
        }
        let deadline = Instant::now() + PATIENCE;
        while get(&format!("{}/health", joined.server.ready)).unwrap().status != 200 {
            assert!(Instant::now() < deadline, "the line does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        joined
    }

    /// The worker of the last stage: who stands in for it gets its layers, and the others keep theirs.
    fn take_last_stage(&mut self) -> Running {
        let at = self
            .workers
            .iter()
            .position(|worker| has_last_stage(&self.server, worker.ready.trim()));
        self.workers.remove(at.expect("one of them has stage 2"))
    }

    fn join(&mut self, control: &str) {
        let args = [
            "worker",
            "--listen",
            "127.0.0.1:0",
            "--join",
            control,
            "--threads",
            "1",
            "--speed",
            "20,200",
        ];
        self.workers.push(Running::start(&args, WORKER_READY));
    }
}

/// Whether a worker that lives has stage 2. Metrics have those that are gone too.
fn has_last_stage(server: &Running, worker: &str) -> bool {
    let text = get(&format!("{}/metrics", server.admin())).unwrap().body;
    let label = "brigade_stage_busy_share{stage=\"2\",worker=\"";
    let mut names = text.lines().filter_map(|line| line.strip_prefix(label)?.split('"').next());
    names.any(|name| name.contains(worker))
}

fn a_spare_goes_on_from_the_copies_of_the_one_it_stands_in_for() {
    let model = synth("granitehybrid", "tiny");
    let more = ["-m", model.to_str().unwrap()];
    let mut joined = Joined::start(3, &serve_args("buddy", &more));
    let expected = expected(&joined.server.ready);
    let last = joined.take_last_stage();
    go_on(&joined.server, &expected, || drop(last));
    std::fs::remove_file(model).unwrap();
}

/// A worker that comes back finds the copies that it wrote before.
fn copies_on_a_disk_are_there_when_the_worker_is_again() {
    let model = synth("granitehybrid", "tiny");
    let cache = std::env::temp_dir().join(format!("brigade-copies-{}", std::process::id()));
    let more = ["--workers", "3", "-m", model.to_str().unwrap()];
    let mut command = Command::new(brigade());
    command.args(["serve", "--listen", "127.0.0.1:0"]).args(serve_args("disk", &more));
    command.env("XDG_CACHE_HOME", &cache);
    let server = Running::spawn(command, SERVING);
    let url = server.ready.clone();
    let deadline = Instant::now() + PATIENCE;
    while get(&format!("{url}/health")).unwrap().status != 200 {
        assert!(Instant::now() < deadline, "the line does not come up");
        std::thread::sleep(Duration::from_millis(20));
    }
    let expected = expected(&url);
    go_on(&server, &expected, || signal("KILL", server.children()[1]));
    let left = || checkpoints(&cache.join("brigade/records")).unwrap().len();
    let deadline = Instant::now() + PATIENCE;
    while left() > 0 {
        assert!(
            Instant::now() < deadline,
            "{} files of sequences that ended are still there",
            left()
        );
        // Closes ride on ubatches.
        ask(&url, &json!({"prompt": [5, 6, 7], "max_tokens": 1}));
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(server);
    std::fs::remove_dir_all(cache).unwrap();
    std::fs::remove_file(model).unwrap();
}

/// A worker's answers to a peer that wants it to keep copies, and that asks for some.
async fn keeps_and_hands_out(who: &Somebody, to: &Address) -> [FailureKind; 2] {
    let connection = who.dial(to, Role::Worker).await.unwrap();
    let mut client = CopiesClient::new(connection);
    let (epoch, coordinator_id) = (7777, "desk".to_owned());
    let open = KeepOpen { epoch, coordinator_id: coordinator_id.clone() };
    let open = KeepRequest { part: Some(keep_request::Part::Open(open)) };
    let kept = client.keep(tokio_stream::once(open)).await.unwrap_err();
    let fetch = FetchRequest { epoch, coordinator_id, layer_end: 1, ..FetchRequest::default() };
    let handed_out = client.fetch(fetch).await.unwrap_err();
    [kept, handed_out].map(|status| Failure::from_status(&status).kind())
}

/// A peer with the right to call is told that the epoch is another one; any other peer is forbidden.
fn only_the_line_has_copies(cluster: &Cluster, workers: &[(&str, Address)]) {
    use FailureKind::{Forbidden, StaleEpoch};
    let authority = cluster.authority();
    for (_, worker) in workers {
        let seen = |who: &Somebody| runtime().block_on(keeps_and_hands_out(who, worker));
        for role in [Role::Worker, Role::Coordinator] {
            let outsider = Somebody::member(&authority, role, workers[0].0);
            assert_eq!(seen(&outsider), [Forbidden, Forbidden], "{role:?}");
        }
        let of_line: Vec<[FailureKind; 2]> =
            workers.iter().map(|(name, _)| seen(&cluster.node(name))).collect();
        assert!(of_line.iter().all(|[_, fetch]| *fetch == StaleEpoch), "{of_line:?}");
        let kept = |keep: FailureKind| of_line.iter().filter(|[kind, _]| *kind == keep).count();
        assert_eq!((kept(StaleEpoch), kept(Forbidden)), (1, 2), "one worker's copies are kept");
    }
}

fn over_tls_copies_go_to_the_buddy_alone() {
    let model = synth("granitehybrid", "tiny");
    let cluster = Cluster::new();
    let server =
        cluster.serve(&serve_args("buddy", &["--expect", "3", "-m", model.to_str().unwrap()]));
    let (names, token) = (["lab", "attic", "cellar"], cluster.token(&["--uses", "3"]));
    let mut workers = names.map(|name| Some(cluster.worker(name, &token)));
    wait_up(&server);
    let address = |worker: &Option<Running>| worker.as_ref().unwrap().ready.trim().to_owned();
    let addresses: Vec<(&str, Address)> =
        names.iter().zip(&workers).map(|(n, w)| (*n, address(w).parse().unwrap())).collect();
    only_the_line_has_copies(&cluster, &addresses);
    let expected = expected(&server.ready);
    let last = names
        .iter()
        .position(|name| has_last_stage(&server, name))
        .expect("one of them has the last stage");
    let again = cluster.worker_args(names[last], None, &[]);
    go_on(&server, &expected, || {
        workers[last] = None;
        let again: Vec<&str> = again.iter().map(String::as_str).collect();
        workers[last] = Some(Running::start(&again, WORKER_READY));
    });
    std::fs::remove_file(model).unwrap();
}

/// Tokens of each stream behind which it is paused; `BRIGADE_PAUSES_CONTEXT` sets others.
const CONTEXT: u64 = 8192;

/// Architectures whose pauses and costs are measured; `BRIGADE_PAUSES_MODELS` sets others, with commas between them.
const MEASURED: &str = "llama,granitehybrid";

fn measured() -> Vec<String> {
    let names = std::env::var("BRIGADE_PAUSES_MODELS").unwrap_or(MEASURED.to_owned());
    names.split(',').map(str::to_owned).collect()
}

/// Tokens that a stream draws between two losses: at least one more checkpoint.
const BETWEEN: usize = 140;

/// Tokens that a stream may draw: the first ones do while the prompts of the others are computed, more than once.
const DRAWN: usize = 8000;

/// Tokens that each stream draws while the cost of checkpoints is measured: its state is copied in the midst of them too.
const DRAWN_EACH: u64 = 384;

/// Pauses of all streams when a worker is lost and comes back, and when a spare stands in for one.
fn pauses(model: &Path, mode: &str, context: u64) -> [Duration; 2] {
    let ctx = (context + DRAWN as u64 + 64).to_string();
    let args = ["--max-seqs", "8", "--keep", "0", "--ctx", &ctx, "--checkpoint", mode];
    let model_args = ["-m", model.to_str().unwrap()];
    let mut joined = Joined::start_alone(3, &[&args[..], &model_args[..], &CUT[..]].concat());
    let control = joined.control.clone();
    let begin = Instant::now();
    let mut streams = Streams::start(&joined.server.ready, STREAMS as usize, context, DRAWN);
    streams.wait(begin, BETWEEN);
    let memory: u64 = joined.workers.iter().map(|worker| resident(worker.pid())).sum();
    let prefill = begin.elapsed();
    let before = metric(&joined.server, "brigade_tokens_replayed_total");
    let lost = Instant::now();
    drop(joined.take_last_stage());
    joined.join(&control);
    streams.wait(lost, BETWEEN);
    let back = streams.pause(lost);
    let again = metric(&joined.server, "brigade_tokens_replayed_total") - before;
    joined.join(&control);
    let deadline = Instant::now() + PATIENCE;
    while metric(&joined.server, "brigade_workers{state=\"spare\"}") < 1.0 {
        assert!(Instant::now() < deadline, "the spare does not join");
        std::thread::sleep(Duration::from_millis(20));
    }
    let lost = Instant::now();
    drop(joined.take_last_stage());
    streams.wait(lost, 2);
    let spare = streams.pause(lost);
    println!(
        "| {} | {mode} | {context} | {:.1} s | {:.2} s | {again} | {:.2} s | {:.2} GiB |",
        model.file_stem().unwrap().to_string_lossy(),
        prefill.as_secs_f64(),
        back.as_secs_f64(),
        spare.as_secs_f64(),
        memory as f64 / f64::from(1 << 30)
    );
    [back, spare]
}

/// Times that a line is started. Lines differ by more than the cost of checkpoints, because of the memory that they
/// get. So both cases are measured on one line.
const STARTS: usize = 2;

/// Rounds of each start: without copies and with them, in an order in which a drift falls on both.
const ROUNDS: [bool; 12] =
    [false, true, true, false, false, true, true, false, false, true, true, false];

/// Ticks that a server and its workers have computed.
fn ticks(server: &Server) -> f64 {
    let of = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let behind_name = stat.rsplit(')').next().unwrap_or_default().to_owned();
        let fields = behind_name.split_whitespace().skip(11).take(2);
        fields.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>()
    };
    let (own, workers) = (server.process.pid(), server.process.children());
    of(own) + workers.into_iter().map(of).sum::<f64>()
}

/// Seconds and ticks of a round: all streams at once, of whose states copies are taken or not.
fn round_of(server: &Server, round: u64, copied: bool) -> [f64; 2] {
    let (begin, before) = (Instant::now(), ticks(server));
    let clients: Vec<_> = (0..STREAMS)
        .map(|i| {
            let url = server.process.ready.clone();
            let body = json!({
                "prompt": prompt(i + STREAMS * round, 256), "max_tokens": DRAWN_EACH, "ignore_eos": true,
                "checkpoint": copied,
            });
            std::thread::spawn(move || ask(&url, &body))
        })
        .collect();
    clients.into_iter().for_each(|client| drop(client.join().unwrap()));
    [begin.elapsed().as_secs_f64(), ticks(server) - before]
}

/// Seconds and ticks of [`ROUNDS`] on a line that was just started; a first round, which touches its memory, does not
/// count.
fn rounds_of_line(model: &Path) -> Vec<[f64; 2]> {
    let args = ["--workers", "3", "--max-seqs", "8", "--keep", "0", "--checkpoint", "buddy"];
    let model = ["-m", model.to_str().unwrap()];
    let server = Server::start(&[&args[..], &CUT, &model].concat());
    round_of(&server, 0, true);
    // Both of a pair have the same prompts.
    let rounds = ROUNDS.iter().enumerate();
    rounds.map(|(i, copied)| round_of(&server, 1 + i as u64 / 2, *copied)).collect()
}

/// Mean of ratios as percent above one, and its standard error.
fn percent_more(ratios: &[f64]) -> [f64; 2] {
    let n = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / n;
    let variance = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>() / (n - 1.0);
    [100.0 * (mean - 1.0), 100.0 * (variance / n).sqrt()]
}

fn pauses_are_ten_times_shorter() {
    let context = std::env::var("BRIGADE_PAUSES_CONTEXT").map_or(CONTEXT, |n| n.parse().unwrap());
    let mut short = Vec::new();
    for arch in measured() {
        let model: PathBuf = synth(&arch, "0.6b");
        println!(
            "| model | checkpoints | context | prompts and {BETWEEN} tokens | comes back | again | spare | workers |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        let [replayed, copied] = ["off", "buddy"].map(|mode| pauses(&model, mode, context));
        std::fs::remove_file(model).unwrap();
        short.extend(replayed.iter().zip(copied).map(|(replay, copy)| (*replay, copy)));
    }
    for (replay, copy) in short {
        assert!(copy * 10 <= replay, "{copy:?} with checkpoints, {replay:?} without");
    }
}

fn checkpoints_cost_little() {
    let tokens = (STREAMS * (256 + DRAWN_EACH)) as f64;
    for arch in measured() {
        let model: PathBuf = synth(&arch, "0.6b");
        let starts: Vec<Vec<[f64; 2]>> = (0..STARTS).map(|_| rounds_of_line(&model)).collect();
        std::fs::remove_file(model).unwrap();
        for rounds in &starts {
            let pace = |(round, copied): (&[f64; 2], &bool)| {
                format!("{:.1}{}", tokens / round[0], if *copied { " with" } else { "" })
            };
            let paces: Vec<String> = rounds.iter().zip(&ROUNDS).map(pace).collect();
            println!("{arch}, tokens/s of each round: {}", paces.join(", "));
        }
        for (what, name) in ["time", "processors' time"].into_iter().enumerate() {
            let (mut cost, mut chance) = (Vec::new(), Vec::new());
            for rounds in &starts {
                let of = |i: usize| rounds[i][what];
                let pairs = (0..ROUNDS.len()).step_by(2);
                cost.extend(
                    pairs.map(|i| if ROUNDS[i] { of(i) / of(i + 1) } else { of(i + 1) / of(i) }),
                );
                // Neighbours of the same kind.
                let alike = (1..ROUNDS.len() - 1).step_by(2);
                chance.extend(alike.map(|i| of(i + 1) / of(i)));
            }
            let ([cost, error], [chance, by_chance]) = (percent_more(&cost), percent_more(&chance));
            println!(
                "{arch}, {name}: {cost:+.1} % with checkpoints (standard error {error:.1}), of {} pairs; \
                 {chance:+.1} % ({by_chance:.1}) from one round to the next of the same kind",
                STARTS * ROUNDS.len() / 2,
            );
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        streams_of_the_demo_model_go_on_from_their_neighbours_copies,
        streams_of_every_kind_of_state_go_on_from_copies,
        drafts_change_no_answer_when_workers_are_lost,
        a_spare_goes_on_from_the_copies_of_the_one_it_stands_in_for,
        copies_on_a_disk_are_there_when_the_worker_is_again,
        over_tls_copies_go_to_the_buddy_alone;
    alone:
        pauses_are_ten_times_shorter ignored("takes half an hour: prints the table of pauses"),
        checkpoints_cost_little ignored("takes half an hour: prints what checkpoints cost");
];

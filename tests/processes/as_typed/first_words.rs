//! Messages to a new user: the workers that are there, the resource that is lacking, the port or CPU that is wrong.
//! Advice suffices when it is followed. The log has one line for each request.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use brigade_tests::process::{Running, Server, brigade, get, is_alive, run, signal, synth};
use brigade_tests::up_share::{free_address, wait_up};
use serde_json::{Value, json};

/// How long anything may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// The beginning of a server's ready line.
const SERVING: &str = "brigade serve listening on ";

/// The beginning of a worker's ready line.
const READY: &str = "brigade worker ready on ";

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("brigade-words-{}-{name}", std::process::id()))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begin.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Lines of a log that hold all of `words`.
fn lines(log: &Path, words: &[&str]) -> Vec<String> {
    let text = std::fs::read_to_string(log).unwrap();
    let holds = |line: &&str| words.iter().all(|word| line.contains(word));
    text.lines().filter(holds).map(str::to_owned).collect()
}

fn joining(control: &str, memory: &str) -> Running {
    let args =
        ["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--join", control, "--memory"];
    Running::start(&[&args[..], &[memory]].concat(), READY)
}

fn a_small_worker_is_counted_and_others_are_waited_for() {
    let (control, log) = (free_address(), scratch("joins.log"));
    let args = ["serve", "--listen", "127.0.0.1:0", "--control", &control];
    let server = Running::start_logged(&args, SERVING, &log);
    let small = joining(&control, "50M");
    let said = wait_for("the headline", || lines(&log, &["no line yet: 1 worker joined"]).pop());
    assert!(said.contains("50.00 MiB there, ") && said.contains("one more worker with"), "{said}");
    assert!(is_alive(server.pid()));
    let public = get(&format!("{}/health", server.ready)).unwrap();
    assert_eq!((public.status, public.body.contains("workers")), (503, false), "{}", public.body);
    let health = get(&format!("{}/health", server.admin())).unwrap();
    assert_eq!(health.status, 503);
    let workers = serde_json::from_str::<Value>(&health.body).unwrap()["workers"].clone();
    assert_eq!((&workers["there"], &workers["expected"]), (&json!(1), &json!(1)), "{workers}");
    assert_eq!(workers["memory_bytes"], 50 << 20);
    assert!(workers["memory_needed_bytes"].as_u64() > Some(50 << 20), "{workers}");
    assert!(!public.body.contains(small.ready.trim()), "{}", public.body);
    let _large = joining(&control, "1G");
    wait_up(&server);
    let body = get(&format!("{}/health", server.admin())).unwrap().body;
    let workers = serde_json::from_str::<Value>(&body).unwrap()["workers"].clone();
    assert_eq!(workers["line"].as_u64().unwrap() + workers["spare"].as_u64().unwrap(), 2);
    drop((server, small));
    std::fs::remove_file(log).unwrap();
}

fn workers_that_are_expected_are_counted_with_their_memory() {
    let (control, log) = (free_address(), scratch("expects.log"));
    let args = ["serve", "--listen", "127.0.0.1:0", "--control", &control, "--expect", "3"];
    let server = Running::start_logged(&args, SERVING, &log);
    let _one = joining(&control, "300M");
    let words = ["no line yet: 1 of 3 workers joined, 300.00 MiB there, "];
    wait_for("the headline", || lines(&log, &words).pop());
    drop(server);
    std::fs::remove_file(log).unwrap();
}

fn nothing_listens_where_a_model_never_fits() {
    let output = run(&["serve", "--listen", "127.0.0.1:0", "--workers", "1", "--memory", "50M"]);
    assert!(!output.status.success());
    let (out, error) = (String::from_utf8_lossy(&output.stdout), errors(&output));
    assert!(error.contains("does not fit") && !out.contains("listening"), "{out}{error}");
}

fn a_name_that_does_not_resolve_yet_is_tried_again() {
    let log = scratch("name.log");
    let args = ["serve", "--listen", "127.0.0.1:0", "--worker", "no-such-host.invalid:7070"];
    let server = Running::start_logged(&args, SERVING, &log);
    wait_for("the second attempt", || lines(&log, &["cannot resolve", "trying again"]).pop());
    std::thread::sleep(Duration::from_secs(2));
    assert!(is_alive(server.pid()), "{:?}", lines(&log, &[]));
    drop(server);
    std::fs::remove_file(log).unwrap();
}

fn a_wrong_port_is_called_that() {
    let server = Server::start(&["--workers", "1"]);
    let http = server.process.ready.trim().strip_prefix("http://").unwrap().to_owned();
    let log = scratch("port.log");
    let join = |port: &str| {
        let args = ["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--join", port];
        Running::start_logged(&args, READY, &log)
    };
    let worker = join(&http);
    let words = ["cannot join", "speaks HTTP: is it serve's --listen instead of its --control?"];
    wait_for("the explanation", || lines(&log, &words).pop());
    // A worker's port speaks gRPC, and a worker cannot join there.
    let other = worker.ready.trim().to_owned();
    let log = scratch("port2.log");
    let args = ["worker", "--listen", "127.0.0.1:0", "--threads", "1", "--join", &other];
    let second = Running::start_logged(&args, READY, &log);
    let words = ["cannot join", "is it a worker's --listen instead of serve's --control?"];
    wait_for("the other explanation", || lines(&log, &words).pop());
    let refused = run(&["run", "-n", "1", "--worker", &http]);
    assert!(errors(&refused).contains("speaks HTTP"), "{}", errors(&refused));
    drop((worker, second));
    for name in ["port.log", "port2.log"] {
        std::fs::remove_file(scratch(name)).unwrap();
    }
}

fn a_worker_refuses_cpus_that_are_not_there() {
    let output = run(&["worker", "--listen", "127.0.0.1:0", "--cpus", "4000"]);
    let error = errors(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("--cpus names CPU 4000") && error.contains("may use"), "{error}");
    assert!(!error.contains("panicked"), "{error}");
}

/// Ten requests, a lost worker and a stop, at the default level.
fn the_log_has_one_line_a_request_and_no_structs() {
    let log = scratch("lines.log");
    let server = Server::start_logged(&["--workers", "2"], &log);
    for i in 0..10 {
        let body = json!({"prompt": format!("In the {i}"), "max_tokens": 4, "temperature": 0,
                          "ignore_eos": true, "stream": i % 2 == 1});
        let reply = server.post("/v1/completions", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let id = reply.header("x-request-id").unwrap();
        let line = wait_for("its line", || {
            let mut lines = lines(&log, &[id]);
            assert!(lines.len() <= 1, "{lines:?}");
            lines.pop()
        });
        for word in
            ["request ", "model=\"brigade-demo\"", "prompt=", "reused=", "generated=4", "answered"]
        {
            assert!(line.contains(word), "{line} lacks {word}");
        }
    }
    let lost = *server.process.children().last().unwrap();
    signal("KILL", lost);
    wait_for("the loss", || lines(&log, &["worker lost", "local worker"]).pop());
    server.wait_healthy(PATIENCE);
    assert!(server.process.stop(PATIENCE).is_some());
    let text = std::fs::read_to_string(&log).unwrap();
    println!("{text}");
    let is_struct = |line: &&str| {
        ["Some(", " { ", "WEIGHT_SOURCE", "=[]"].iter().any(|word| line.contains(word))
    };
    assert_eq!(text.lines().find(is_struct), None);
    assert!(!text.contains("sequence opens") && !text.contains("connecting 1 workers"));
    std::fs::remove_file(log).unwrap();
}

/// One command line for each way that an error advises, `--memory` of a worker more as a line in the cluster's file.
fn advised(error: &str) -> Vec<String> {
    let suffices = error.split("each of these makes it fit: ").nth(1).unwrap();
    let suffices = suffices.split("; not enough").next().unwrap();
    suffices.split(", or ").map(str::to_owned).collect()
}

fn advice_that_is_followed_makes_the_model_fit() {
    // A demand beyond a machine's memory: too much KV cache, too many states, too large ubatches.
    let cases = [
        ("llama", "185M", vec!["--ctx", "65536"]),
        ("llama", "112M", vec!["--ubatch", "2048"]),
        ("mamba2", "200M", vec!["--max-seqs", "400", "--keep", "0"]),
        ("jamba", "100M", vec!["--ctx", "32768", "--max-seqs", "64"]),
    ];
    let mut followed = Vec::new();
    for (arch, memory, more) in cases {
        let (model, file) = (synth(arch, "tiny"), scratch("cluster.toml"));
        let machine = |memory: &str| {
            format!("[[worker]]\nname = \"w\"\nmemory = \"{memory}\"\ngbps = 20.0\ngops = 500.0\n")
        };
        let [m, f] = [&model, &file].map(|path| path.to_str().unwrap());
        let plan = |machines: String, flags: &[&str]| {
            std::fs::write(&file, machines).unwrap();
            run(&[&["plan", "-m", m, "--cluster", f], flags].concat())
        };
        let refused = plan(machine(memory), &more);
        let error = errors(&refused);
        assert!(error.contains("does not fit"), "{arch}: {error}");
        for way in advised(&error) {
            println!("{arch} {more:?}: {way}");
            let worker = way.strip_prefix("one more worker with ");
            let output = match worker.and_then(|rest| rest.strip_suffix(" or more")) {
                Some(size) => {
                    let machines = machine(memory) + &machine(&size.replace(' ', ""));
                    plan(machines.replacen("\"w\"", "\"v\"", 1), &more)
                }
                None => {
                    let flags = way.split(" (").next().unwrap().trim_start_matches("together ");
                    let flags: Vec<&str> = flags.split(' ').collect();
                    let kept = more.chunks(2).filter(|pair| !flags.contains(&pair[0]));
                    let kept = kept.flatten().copied();
                    let all: Vec<&str> = kept.chain(flags.iter().copied()).collect();
                    followed.push(flags[0].to_owned());
                    plan(machine(memory), &all)
                }
            };
            assert!(output.status.success(), "{arch}: {way}: {}", errors(&output));
        }
        std::fs::remove_file(&model).unwrap();
        std::fs::remove_file(&file).unwrap();
    }
    for flag in ["--ctx", "--kv-type", "--max-seqs", "--ubatch"] {
        assert!(followed.iter().any(|f| f == flag), "{flag} was never advised: {followed:?}");
    }
}

fn plan_explains_its_columns() {
    let output = run(&["plan", "--workers", "1"]);
    let text = String::from_utf8_lossy(&output.stdout);
    for column in ["layers: ", "memory: ", "free: ", "busy at best: "] {
        assert!(text.contains(column), "{column} is not explained:\n{text}");
    }
}

fn progress_is_for_terminals() {
    let (model, prompt) = (scratch("m.gguf"), "word ".repeat(900));
    let m = model.to_str().unwrap();
    let mut command = Command::new(brigade());
    command.args(["synth", "--arch", "llama", "--size", "tiny", "--out", m]);
    let synth = command.stdin(Stdio::null()).output().unwrap();
    assert!(synth.status.success() && synth.stderr.is_empty(), "{}", errors(&synth));
    let output = run(&["run", &prompt, "-n", "1", "--workers", "1"]);
    let error = errors(&output);
    assert!(output.status.success() && error.starts_with("prefill "), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    std::fs::remove_file(model).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_small_worker_is_counted_and_others_are_waited_for,
        workers_that_are_expected_are_counted_with_their_memory,
        nothing_listens_where_a_model_never_fits,
        a_name_that_does_not_resolve_yet_is_tried_again,
        a_wrong_port_is_called_that,
        a_worker_refuses_cpus_that_are_not_there,
        the_log_has_one_line_a_request_and_no_structs,
        advice_that_is_followed_makes_the_model_fit,
        plan_explains_its_columns,
        progress_is_for_terminals;
];

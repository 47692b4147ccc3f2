//! Every command, as a user types it.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use brigade_gguf::npy;
use brigade_tests::process::{Running, Server, brigade, get, is_alive, run, signal};
use brigade_tests::up_share::free_address;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("brigade-commands-{}-{name}", std::process::id()))
}

/// Standard output of a command that must succeed.
fn out(args: &[&str]) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn json_out(args: &[&str]) -> Value {
    let text = out(args);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
}

/// Standard error of a command that must fail.
fn refusal(args: &[&str]) -> String {
    let output = run(args);
    assert!(!output.status.success(), "{args:?} should fail");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A small random model.
fn model() -> String {
    synthetic("qwen3")
}

fn synthetic(arch: &str) -> String {
    let path = scratch(&format!("{arch}-tiny.gguf"));
    if !path.exists() {
        let part = scratch(&format!("{arch}-tiny-{:?}.gguf", std::thread::current().id()));
        let file = part.to_str().unwrap();
        out(&[
            "synth", "--arch", arch, "--size", "tiny", "--quant", "Q8_0", "--force", "--out", file,
        ]);
        std::fs::rename(&part, &path).unwrap();
    }
    path.to_str().unwrap().to_owned()
}

fn run_prints_the_same_ids_over_any_number_of_workers() {
    let m = model();
    let ids = |workers: &str| {
        json_out(&[
            "run",
            "-m",
            &m,
            "--workers",
            workers,
            "--tokens",
            "1,2,3",
            "-n",
            "10",
            "--temp",
            "0",
            "--ids",
        ])
    };
    let one = ids("1");
    assert_eq!(one.as_array().unwrap().len(), 10);
    assert_eq!(ids("2"), one);
    assert_eq!(ids("4"), one);
}

fn run_with_nothing_at_all_writes_text() {
    let output = run(&["run", "-n", "12", "--temp", "0"]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.trim().split(' ').count() > 3, "{text:?}");
    let summary = String::from_utf8(output.stderr).unwrap();
    assert!(summary.contains("prefill") && summary.contains("t/s"), "{summary}");
}

fn logits_are_the_same_bits_over_any_cut() {
    let m = model();
    let rows = |name: &str, more: &[&str]| {
        let path = scratch(name);
        let file = path.to_str().unwrap();
        let tokens = "5,4,3,2,1,9,8,7,6,5,4";
        let mut args = vec!["logits", "-m", &m, "--tokens", tokens, "--force", "--out", file];
        args.extend(more);
        out(&args);
        let rows = npy::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        rows
    };
    let one = rows("one.npy", &["--workers", "1"]);
    assert_eq!(one.shape, [11, 512]);
    let bits = |data: &[f32]| data.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let three = rows("three.npy", &["--workers", "3", "--ubatch", "4"]);
    assert_eq!(bits(&one.data), bits(&three.data));
}

fn tokens_go_there_and_back() {
    let ids = out(&["tokenize", "And God said"]);
    assert_eq!(out(&["detokenize", ids.trim()]).trim(), "And God said");
    let with: Vec<u32> = serde_json::from_str(&ids).unwrap();
    let without: Vec<u32> =
        serde_json::from_str(&out(&["tokenize", "--no-bos", "And God said"])).unwrap();
    assert!(with.ends_with(&without));
}

fn bench_rows_have_the_promised_fields() {
    let m = model();
    let rows = json_out(&[
        "bench",
        "-m",
        &m,
        "--workers",
        "2",
        "--threads",
        "1",
        "--prompt",
        "64",
        "--gen",
        "8",
        "--parallel",
        "1,3",
        "--repeat",
        "1",
        "--json",
    ]);
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        for field in ["model", "quant", "test"] {
            assert!(row[field].is_string(), "{field} in {row}");
        }
        for field in [
            "workers",
            "threads",
            "parallel",
            "tokens",
            "seconds",
            "tokens_per_second",
            "gb_per_second",
            "share_of_memory",
            "gop_per_second",
            "share_of_peak",
            "wire_bytes_per_token",
        ] {
            assert!(row[field].as_f64().is_some_and(|v| v > 0.0), "{field} in {row}");
        }
        assert!(row["stage_busy"].is_array());
        for stage in row["memory"].as_array().unwrap() {
            let [weights, states, resident, peak] =
                ["weight_bytes", "state_bytes", "resident_bytes", "peak_bytes"]
                    .map(|field| stage[field].as_u64().unwrap());
            assert!(weights > 0 && states > 0, "{stage}");
            assert!(resident > weights && peak >= resident, "{stage}");
        }
        assert_eq!(row["memory"].as_array().unwrap().len(), 2);
    }
    assert_eq!((&rows[3]["test"], &rows[3]["tokens"]), (&json!("decode"), &json!(24)));
    let busy = rows[3]["stage_busy"].as_array().unwrap();
    assert_eq!(busy.len(), 2);
    assert!(busy.iter().all(|b| (0.0..=1.0).contains(&b.as_f64().unwrap())));
}

fn a_bench_of_several_numbers_of_threads_has_a_curve() {
    let m = model();
    let several = ["--workers", "1", "--threads", "1,2", "--prompt", "16", "--gen", "4"];
    let mut command = vec!["bench", "-m", &m, "--repeat", "1", "--json"];
    command.extend(several);
    let report = json_out(&command);
    let curve = report["curve"].as_array().unwrap();
    let points: Vec<_> = curve.iter().map(|point| (&point["threads"], &point["test"])).collect();
    let [one, two, prefill, decode] = [json!(1), json!(2), json!("prefill"), json!("decode")];
    assert_eq!(points, [(&one, &prefill), (&one, &decode), (&two, &prefill), (&two, &decode)]);
    for point in curve {
        let number = |field: &str| point[field].as_f64().unwrap();
        assert!(number("tokens_per_second") > 0.0 && number("ratio") > 0.0, "{point}");
        assert!(number("memory_gb_per_second") > 0.0, "{point}");
    }
    assert_eq!(curve[1]["ratio"], json!(1.0));
    assert_eq!(report["rows"].as_array().unwrap().len(), 4);
    assert!(!report["machine"]["cpus"].as_array().unwrap().is_empty(), "{}", report["machine"]);
    command.push("--mixed");
    let refused = run(&command);
    assert!(!refused.status.success(), "several numbers of threads with --mixed");
}

fn a_bench_at_a_depth_begins_behind_its_contexts() {
    // Sequences of attention begin with any prefix, recurrent ones with whole ones only.
    for m in [model(), synthetic("granitehybrid")] {
        let args = ["--workers", "2", "--threads", "1", "--prompt", "16", "--gen", "8"];
        let mut command = vec!["bench", "-m", &m, "--depth", "100", "--parallel", "1,3", "--json"];
        command.extend(args);
        let rows = json_out(&command);
        let rows = rows.as_array().unwrap();
        assert_eq!(rows.len(), 4);
        for row in rows {
            let rows_of = |size: &serde_json::Value| {
                size["rows"].as_f64().unwrap() * size["count"].as_f64().unwrap()
            };
            let computed: f64 = row["ubatches"].as_array().unwrap().iter().map(rows_of).sum();
            assert_eq!(row["depth"], 100);
            // The contexts are not among what was measured.
            assert_eq!(computed, row["tokens"].as_f64().unwrap(), "{row}");
        }
    }
}

fn a_mixed_bench_times_every_token_of_its_streams() {
    let m = model();
    let args = ["--workers", "2", "--threads", "1", "--prompt", "48", "--gen", "24"];
    let mut command = vec!["bench", "-m", &m, "--mixed", "--parallel", "1,2", "--json"];
    command.extend(args);
    let rows = json_out(&command);
    for (row, streams) in rows.as_array().unwrap().iter().zip([1, 2]) {
        assert_eq!((&row["test"], &row["parallel"]), (&json!("mixed"), &json!(streams)));
        let mixed = &row["mixed"];
        assert_eq!(mixed["prompt_tokens"], 48);
        assert!(mixed["prompts"].as_u64().unwrap() >= 1, "{mixed}");
        let [during, quiet] = ["during", "quiet"].map(|part| &mixed[part]);
        let gaps = [during, quiet].map(|gaps| gaps["count"].as_u64().unwrap());
        assert_eq!(gaps[0] + gaps[1], 23 * streams);
        let times = ["p50_ms", "p99_ms", "worst_ms"].map(|time| during[time].as_f64().unwrap());
        assert!(times.is_sorted(), "{mixed}");
    }
}

fn plan_and_inspect_agree_about_the_layers() {
    let m = model();
    let inspected = json_out(&["inspect", &m, "--json"]);
    assert_eq!(inspected["architecture"], "qwen3");
    let n_layer = inspected["layers"].as_array().unwrap().len();
    let plan = json_out(&["plan", "-m", &m, "--workers", "2", "--json"]);
    let stages = plan["stages"].as_array().unwrap();
    assert_eq!(stages[0]["layers"]["start"], 0);
    assert_eq!(stages.last().unwrap()["layers"]["end"], n_layer);
    let explained = out(&["plan", "-m", &m, "--workers", "2", "--explain"]);
    assert!(explained.contains("embedding") && explained.contains("head"), "{explained}");
}

fn perplexity_of_a_random_model_is_about_its_vocabulary() {
    let text = scratch("text.txt");
    std::fs::write(&text, "some words that mean nothing to it ".repeat(20)).unwrap();
    let m = model();
    let result =
        json_out(&["perplexity", "-m", &m, "-f", text.to_str().unwrap(), "--ctx", "32", "--json"]);
    let perplexity = result["perplexity"].as_f64().unwrap();
    assert!((50.0..50_000.0).contains(&perplexity), "{result}");
}

fn mistakes_get_a_sentence() {
    let m = model();
    for (args, word) in [
        (vec!["run", "-m", "/no/such/file.gguf", "-p", "x"], "/no/such/file.gguf"),
        (vec!["run", "-m", &m], "no prompt"),
        (vec!["run", "-m", &m, "--tokens", "999999"], "999999"),
        (vec!["run", "-m", &m, "--tokens", "1", "--worker", "127.0.0.1:1"], "127.0.0.1:1"),
        (vec!["run", "-m", &m, "--tokens", "1", "--memory", "1M"], "does not fit"),
        (vec!["run", "-m", &m, "--tokens", "1", "--kernels", "abacus"], "abacus"),
        (
            vec!["run", "-m", &m, "--tokens", "1", "--workers", "3", "--worker-cpus", "0/1"],
            "--worker-cpus",
        ),
        (vec!["synth", "--arch", "eliza", "--out", "/tmp/x.gguf"], "eliza"),
        (vec!["tokenize", "-m", "/dev/null", "x"], "/dev/null"),
    ] {
        let error = refusal(&args);
        assert!(error.contains(word), "{args:?}: {error}");
        assert!(!error.contains("panicked"), "{args:?}: {error}");
        println!("{args:?}: {}", error.trim());
    }
}

fn an_interrupted_run_leaves_nothing_behind() {
    let mut child = Command::new(brigade())
        .args(["run", "-n", "1000000", "--ignore-eos", "--ctx", "4096"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + PATIENCE;
    let mut workers = Vec::new();
    while workers.len() < 2 {
        assert!(Instant::now() < deadline, "no workers");
        std::thread::sleep(Duration::from_millis(20));
        workers = brigade_tests::process::children_of(child.id());
    }
    signal("INT", child.id());
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(130));
    // A worker that was still starting has been killed, not waited for: the kernel may need a moment.
    while workers.iter().any(|pid| is_alive(*pid)) {
        assert!(Instant::now() < deadline, "a worker outlived its run");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn workers_may_be_started_first_and_used_again() {
    let start =
        || Running::start(&["worker", "--listen", "127.0.0.1:0"], "brigade worker ready on ");
    let (a, b) = (start(), start());
    let m = model();
    let ids = |m: &str| {
        json_out(&[
            "run", "-m", m, "--worker", &a.ready, "--worker", &b.ready, "--tokens", "1,2", "-n",
            "5", "--temp", "0", "--ids",
        ])
    };
    assert_eq!(ids(&m), ids(&m), "the same workers, one run after another");
    let other = scratch("other.gguf");
    out(&[
        "synth",
        "--arch",
        "llama",
        "--size",
        "tiny",
        "--quant",
        "Q4_0",
        "--force",
        "--out",
        other.to_str().unwrap(),
    ]);
    assert_eq!(ids(other.to_str().unwrap()).as_array().unwrap().len(), 5, "and another model");
}

fn a_remote_worker_may_come_back() {
    let at = |address: &str| {
        Running::start(&["worker", "--listen", address], "brigade worker ready on ")
    };
    let (a, b) = (at("127.0.0.1:0"), at(&free_address()));
    let server = Server::start(&["--worker", &a.ready, "--worker", &b.ready]);
    let body = json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 5,
                       "temperature": 0, "ignore_eos": true });
    let before = server.chat(&body);
    let address = b.ready.clone();
    drop(b);
    let deadline = Instant::now() + PATIENCE;
    while get(&server.url("/health")).unwrap().status == 200 {
        assert!(Instant::now() < deadline, "the loss was not noticed");
        std::thread::sleep(Duration::from_millis(20));
    }
    let reply = server.post("/v1/chat/completions", &body);
    assert_eq!(reply.status, 503, "{}", reply.body);
    let _again = at(&address);
    server.wait_healthy(PATIENCE);
    assert_eq!(server.chat(&body), before);
}

fn workers_may_join() {
    let control = free_address();
    let joining = || {
        Running::start(
            &["worker", "--listen", "127.0.0.1:0", "--join", &control],
            "brigade worker ready on ",
        )
    };
    // They come first and keep asking.
    let _workers = (joining(), joining());
    let server = Server::start(&["--control", &control, "--expect", "2"]);
    let body = json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 3 });
    server.chat(&body);
    assert!(server.process.children().is_empty(), "no local workers were started");
}

/// A worker may write to its own folder alone, so a driver keeps its compiled shaders there, unless the user chooses
/// another place.
fn drivers_keep_what_they_compiled_in_the_workers_folder() {
    if !cfg!(target_os = "linux") {
        return;
    }
    let cache = scratch("drivers");
    let fixed = ["worker", "--listen", "127.0.0.1:0", "--cache-dir", cache.to_str().unwrap()];
    let seen = |device: &[&str]| {
        let worker = Running::start(&[&fixed[..], device].concat(), "brigade worker ready on ");
        std::fs::read_to_string(format!("/proc/{}/environ", worker.pid())).unwrap()
    };
    let variable = "MESA_SHADER_CACHE_DIR";
    let said = std::env::var(variable).unwrap_or_else(|_| cache.to_str().unwrap().to_owned());
    assert!(seen(&[]).split('\0').any(|entry| entry == format!("{variable}={said}")));
    let is_set = seen(&["--device", "cpu"]).contains(variable);
    assert_eq!(is_set, std::env::var_os(variable).is_some(), "a CPU has no such driver");
    std::fs::remove_dir_all(cache).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        run_prints_the_same_ids_over_any_number_of_workers,
        run_with_nothing_at_all_writes_text,
        logits_are_the_same_bits_over_any_cut,
        tokens_go_there_and_back,
        bench_rows_have_the_promised_fields,
        a_bench_of_several_numbers_of_threads_has_a_curve,
        a_bench_at_a_depth_begins_behind_its_contexts,
        a_mixed_bench_times_every_token_of_its_streams,
        plan_and_inspect_agree_about_the_layers,
        perplexity_of_a_random_model_is_about_its_vocabulary,
        mistakes_get_a_sentence,
        an_interrupted_run_leaves_nothing_behind,
        workers_may_be_started_first_and_used_again,
        a_remote_worker_may_come_back,
        workers_may_join,
        drivers_keep_what_they_compiled_in_the_workers_folder;
];

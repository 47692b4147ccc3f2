//! Cuts by hand, as a user gives them. All of them give the same bits. `plan` shows them beside the planner's
//! own, and a refusal says what would do. A server's line waits for all workers that the cut names.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use brigade_tests::process::{Running, Server, get, run, synth};
use brigade_tests::up_share::free_address;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(120);
const WORKER_READY: &str = "brigade worker ready on ";

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("brigade-cuts-{}-{name}", std::process::id()))
}

fn out(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refusal(args: &[&str]) -> String {
    let output = run(args);
    assert!(!output.status.success(), "{args:?} should fail");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Bytes of the logits of a prompt over a line that is cut like this.
fn logits(model: &[&str], cut: &[&str]) -> Vec<u8> {
    let file = scratch(&format!("{}.npy", cut.join("").replace('/', "-")));
    let prompt = ["--tokens", "5,4,3,2,1,9,8,7,6,5,4,300,17,11", "--ubatch", "4"];
    let out_file = ["--out", file.to_str().unwrap()];
    out(&[&["logits"], model, &prompt, &out_file, cut].concat());
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    bytes
}

fn every_cut_gives_the_same_bytes() {
    let hybrid = synth("jamba", "tiny");
    let n_layers = |model: &[&str]| {
        let whole = [&["plan", "--json", "--workers", "1"], model].concat();
        let plan: Value = serde_json::from_str(&out(&whole)).unwrap();
        plan["stages"][0]["layers"]["end"].as_u64().unwrap()
    };
    for model in [&[][..], &["-m", hybrid.to_str().unwrap()]] {
        let last = n_layers(model) - 1;
        let whole = logits(model, &["--workers", "1"]);
        for cut in [
            ["--cuts", "1"],
            ["--cuts", &last.to_string()],
            ["--cuts", "1,2,3"],
            ["--tensor-split", "3,1"],
            ["--tensor-split", "1,0,2"],
            ["--tensor-split", "0.2/5/0.2"],
        ] {
            assert!(logits(model, &cut) == whole, "{model:?} {cut:?}");
        }
    }
    std::fs::remove_file(hybrid).unwrap();
}

fn a_cut_is_what_runs_in_every_command() {
    let text = scratch("text.txt");
    std::fs::write(&text, "In the beginning God created the heaven and the earth. ".repeat(20))
        .unwrap();
    let trace = scratch("trace.json");
    let (text_file, trace_file) = (text.to_str().unwrap(), trace.to_str().unwrap());
    for args in [
        vec!["run", "-n", "2", "--cuts", "1", "--trace", trace_file],
        vec![
            "bench", "--prompt", "8", "--gen", "2", "--repeat", "1", "--cuts", "1", "--trace",
            trace_file,
        ],
    ] {
        out(&args);
        let trace = std::fs::read_to_string(&trace).unwrap();
        assert!(
            trace.contains("layers 0..1") && trace.contains("layers 1..6"),
            "{args:?}: {trace:.2000}"
        );
    }
    // Three workers are started for three shares; a wrong number of them is refused by every command.
    let (three, rows) = (["--workers", "3", "--cuts", "1"], scratch("never.npy"));
    out(&["perplexity", "-f", text_file, "--ctx", "32", "--tensor-split", "1,1,1", "--json"]);
    for command in [
        vec!["run"],
        vec!["bench"],
        vec!["plan"],
        vec!["serve", "--listen", "127.0.0.1:0"],
        vec!["perplexity", "-f", text_file],
        vec!["logits", "--tokens", "1", "--out", rows.to_str().unwrap()],
    ] {
        let error = refusal(&[&command[..], &three].concat());
        assert!(
            error.contains("3 workers") && error.contains("--cuts 2,4 would do"),
            "{command:?}: {error}"
        );
    }
    std::fs::remove_file(text).unwrap();
    std::fs::remove_file(trace).unwrap();
}

fn what_does_not_fit_is_refused_with_what_would() {
    let cases: [(&[&str], &[&str]); 8] = [
        (&["--tensor-split", "0,0"], &["all shares are 0"]),
        (&["--tensor-split", "1,nan"], &["\"nan\" is not a share", "from 0 to"]),
        (&["--tensor-split", "-1,2"], &["\"-1\" is not a share"]),
        (&["--tensor-split", "1,1,1,1,1,1,1"], &["7 workers", "at most 6 shares"]),
        (&["--cuts", "4,2"], &["must ascend"]),
        (&["--cuts", "6"], &["has 6 layers", "from 1 to 5"]),
        (&["--cuts", "2,4", "--workers", "2"], &["2 workers", "--cuts 3 would do"]),
        (&["--cuts", "2", "--tensor-split", "1,1"], &["cannot be used with"]),
    ];
    for (cut, says) in cases {
        let error = refusal(&[&["run", "-n", "1"], cut].concat());
        for word in says {
            assert!(error.contains(word), "{cut:?}: {error}");
        }
    }
}

fn a_worker_that_cannot_hold_its_share_is_named_with_what_fits() {
    let cluster = scratch("cluster.toml");
    let worker = |name: &str, memory: &str| {
        format!("[[worker]]\nname = \"{name}\"\nmemory = \"{memory}\"\ngbps = 10.0\ngops = 100.0\n")
    };
    std::fs::write(&cluster, worker("large", "8G") + &worker("small", "400M")).unwrap();
    let model = scratch("llama.gguf");
    let file = model.to_str().unwrap();
    out(&["synth", "--arch", "llama", "--size", "0.6b", "--header-only", "--out", file]);
    let plan = |cut: &str| {
        let cluster = cluster.to_str().unwrap();
        run(&["plan", "-m", file, "--cluster", cluster, "--max-seqs", "1", "--tensor-split", cut])
    };
    let refused = plan("1,9");
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && error.contains("small has 400.00 MiB"), "{error}");
    assert!(error.contains("at most") && error.contains("of them fit"), "{error}");
    let own = error.split("--cuts ").nth(1).expect("a cut that fits").split(')').next().unwrap();
    let fits = run(&[
        "plan",
        "-m",
        file,
        "--cluster",
        cluster.to_str().unwrap(),
        "--max-seqs",
        "1",
        "--cuts",
        own,
    ]);
    assert!(fits.status.success(), "{}", String::from_utf8_lossy(&fits.stderr));
    assert!(plan("9,1").status.success());
    std::fs::remove_file(cluster).unwrap();
    std::fs::remove_file(model).unwrap();
}

fn plan_shows_a_cut_beside_its_own() {
    let args = ["plan", "--tensor-split", "4,1,1"];
    let text = out(&args);
    for word in ["--tensor-split 4,1,1:", "the planner's own cut:", "by hand", "planner's", "0..4"]
    {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
    let plan: Value = serde_json::from_str(&out(&[&args[..], &["--json"]].concat())).unwrap();
    let layers = |plan: &Value| {
        let stages = plan["stages"].as_array().unwrap();
        let range = |s: &Value| (s["layers"]["start"].as_u64(), s["layers"]["end"].as_u64());
        stages.iter().map(range).collect::<Vec<_>>()
    };
    let want = [(Some(0), Some(4)), (Some(4), Some(5)), (Some(5), Some(6))];
    assert_eq!((layers(&plan), &plan["by_hand"]), (want.to_vec(), &json!("--tensor-split 4,1,1")));
    assert!(plan["own"]["by_hand"].is_null() && layers(&plan["own"]) != want);
    let best = |plan: &Value| {
        let prefill = &plan["predictions"][0];
        assert_eq!(prefill["test"], "prefill");
        prefill["tokens_per_second"].as_f64().unwrap()
    };
    assert!(best(&plan["own"]) >= best(&plan) * 0.99, "{plan}");
    assert!(plan["stages"][0]["memory"]["weights"].as_u64().unwrap() > 0);
}

fn workers_that_join_are_waited_for_until_the_cut_has_all_of_its_own() {
    let control = free_address();
    let server = Running::start(
        &["serve", "--listen", "127.0.0.1:0", "--control", &control, "--cuts", "3"],
        "brigade serve listening on ",
    );
    let join = ["worker", "--listen", "127.0.0.1:0", "--join", &control];
    let is_up = || get(&format!("{}/health", server.ready)).unwrap().status == 200;
    let _first = Running::start(&join, WORKER_READY);
    std::thread::sleep(Duration::from_secs(3));
    assert!(!is_up(), "a cut of two stages needs two workers, and one has joined");
    let _second = Running::start(&join, WORKER_READY);
    let deadline = Instant::now() + PATIENCE;
    while !is_up() {
        assert!(
            Instant::now() < deadline,
            "two workers have joined, and the line does not come up"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn a_servers_line_waits_for_all_workers_that_the_cut_names() {
    let at = |address: &str| Running::start(&["worker", "--listen", address], WORKER_READY);
    let (a, b) = (at("127.0.0.1:0"), at(&free_address()));
    let log = scratch("serve.log");
    let server =
        Server::start_logged(&["--worker", &a.ready, "--worker", &b.ready, "--cuts", "5"], &log);
    let is_up = || get(&server.url("/health")).unwrap().status == 200;
    let body = json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 5,
                       "temperature": 0, "ignore_eos": true });
    let before = server.chat(&body);
    let address = b.ready.clone();
    drop(b);
    let deadline = Instant::now() + PATIENCE;
    while is_up() {
        assert!(Instant::now() < deadline, "the loss was not noticed");
        std::thread::sleep(Duration::from_millis(20));
    }
    let _again = at(&address);
    server.wait_healthy(PATIENCE);
    assert_eq!(server.chat(&body), before);
    let log = std::fs::read_to_string(log).unwrap();
    let plans = log.matches("cut as ordered: --cuts 5").count();
    assert!(plans >= 2, "the line was built twice by hand, not once by the planner:\n{log}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        every_cut_gives_the_same_bytes,
        a_cut_is_what_runs_in_every_command,
        what_does_not_fit_is_refused_with_what_would,
        a_worker_that_cannot_hold_its_share_is_named_with_what_fits,
        plan_shows_a_cut_beside_its_own,
        workers_that_join_are_waited_for_until_the_cut_has_all_of_its_own,
        a_servers_line_waits_for_all_workers_that_the_cut_names;
];

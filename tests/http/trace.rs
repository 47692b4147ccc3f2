//! `--trace`: the timeline of real workers, read back as any other program would read it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use brigade_tests::process::{Server, run};
use serde_json::{Value, json};

const N_STAGES: usize = 2;

/// How far a share computed from whole microseconds may be from the same share computed elsewhere.
const CLOSE: f64 = 0.01;

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("brigade-trace-{}-{name}", std::process::id()))
}

fn read(path: &PathBuf) -> Value {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::remove_file(path).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// One span: begin, end, ubatch.
type Span = (i64, i64, u64);

/// Spans of threads with this name on a process, in the order of the file.
fn spans(trace: &Value, name: &str, pid: usize) -> Vec<Span> {
    let events = trace["traceEvents"].as_array().unwrap();
    let ours = events.iter().filter(|e| e["name"] == name && e["pid"] == pid && e["ph"] == "X");
    let span = |e: &Value| {
        let (from, took) = (e["ts"].as_i64().unwrap(), e["dur"].as_i64().unwrap());
        (from, from + took, e["args"]["ubatch"].as_u64().unwrap())
    };
    ours.map(span).collect()
}

/// Asynchronous spans with this name: by id, begin and end.
fn overlapping(trace: &Value, name: &str, pid: usize) -> BTreeMap<String, Span> {
    let mut found: BTreeMap<String, Span> = BTreeMap::new();
    for event in trace["traceEvents"].as_array().unwrap() {
        if event["name"] != name || event["pid"] != pid {
            continue;
        }
        let (id, ts) = (event["id"].as_str().unwrap().to_owned(), event["ts"].as_i64().unwrap());
        match event["ph"].as_str().unwrap() {
            "b" => {
                let ubatch = event["args"]["ubatch"].as_u64().unwrap();
                assert!(found.insert(id, (ts, i64::MIN, ubatch)).is_none(), "{event} begins twice");
            }
            "e" => found.get_mut(&id).unwrap_or_else(|| panic!("{event} did not begin")).1 = ts,
            other => panic!("{other} in {event}"),
        }
    }
    assert!(found.values().all(|(from, to, _)| from <= to), "{name}: {found:?}");
    found
}

/// Begin and end of the phase whose name begins so; there is one.
fn phase(trace: &Value, begins: &str) -> (i64, i64) {
    let events = trace["traceEvents"].as_array().unwrap();
    let is_ours =
        |e: &&Value| e["cat"] == "phase" && e["name"].as_str().unwrap().starts_with(begins);
    let [event] = events.iter().filter(is_ours).collect::<Vec<_>>()[..] else {
        panic!("not one phase {begins}");
    };
    let (ts, dur) = (event["ts"].as_i64().unwrap(), event["dur"].as_i64().unwrap());
    (ts, ts + dur)
}

/// Busy share of each stage between the returns of the second ubatch of a phase and the second last, as
/// `bench` defines it: fill and drain of two stages left out.
fn busy(trace: &Value, from: i64, to: i64) -> Vec<f64> {
    let mut trips: Vec<Span> = overlapping(trace, "ubatch", 0).into_values().collect();
    trips.retain(|&(sent, done, _)| from <= sent && done <= to);
    trips.sort_unstable_by_key(|&(_, _, ubatch)| ubatch);
    let events = trace["traceEvents"].as_array().unwrap();
    let rows = |ubatch: u64| {
        let is_it = |e: &&Value| e["name"] == "compute" && e["args"]["ubatch"] == ubatch;
        events.iter().find(is_it).unwrap()["args"]["rows"].as_u64().unwrap()
    };
    trips.retain(|&(_, _, ubatch)| rows(ubatch) > 0);
    let steady = &trips[N_STAGES..=trips.len() - N_STAGES];
    let wall = steady.last().unwrap().1 - trips[N_STAGES - 1].1;
    let shares = (0..N_STAGES).map(|stage| {
        let compute = spans(trace, "compute", stage + 1);
        let ours =
            compute.iter().filter(|span| steady.iter().any(|&(_, _, ubatch)| ubatch == span.2));
        (ours.map(|(from, to, _)| to - from).sum::<i64>() as f64 / wall as f64).min(1.0)
    });
    shares.collect()
}

fn assert_apart(spans: &[Span], what: &str) {
    let mut spans = spans.to_vec();
    spans.sort_unstable();
    for pair in spans.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{what}: {pair:?} overlap");
    }
}

/// Checks that hold for any trace of two stages.
fn check(trace: &Value) {
    let trips = overlapping(trace, "ubatch", 0);
    let back = overlapping(trace, "hop", 0);
    for stage in 1..=N_STAGES {
        let (compute, receive) = (spans(trace, "compute", stage), spans(trace, "receive", stage));
        assert_eq!((compute.len(), receive.len()), (trips.len(), trips.len()), "stage {stage}");
        let send = spans(trace, "send", stage);
        assert!(send.len() + 1 >= trips.len(), "{} sends of {}", send.len(), trips.len());
        assert_apart(&[compute, send].concat(), &format!("compute and send of stage {stage}"));
        assert_apart(&receive, &format!("receive of stage {stage}"));
    }
    let computed = [1, 2].map(|stage| {
        let spans = spans(trace, "compute", stage);
        spans.into_iter().map(|span| (span.2, span)).collect::<BTreeMap<_, _>>()
    });
    // The sum of the hops' least times: what the clocks leave open. Whole microseconds add a few.
    let open = trace["otherData"]["clock_uncertainty_us"].as_i64().unwrap();
    assert!((0..1_000_000).contains(&open), "{open}");
    for (id, &(sent, done, ubatch)) in &trips {
        let (first, second) = (computed[0][&ubatch], computed[1][&ubatch]);
        assert!(sent <= first.0 && first.1 <= second.0 && second.1 <= done, "ubatch {ubatch}");
        assert_eq!(back[id], (second.1, done, ubatch));
    }
}

fn a_benchs_busy_shares_can_be_read_from_its_trace() {
    let (model, file) = (scratch("tiny.gguf"), scratch("bench.json"));
    let (model, path) = (model.to_str().unwrap(), file.to_str().unwrap());
    let made = run(&[
        "synth", "--arch", "qwen3", "--size", "tiny", "--quant", "Q8_0", "--force", "--out", model,
    ]);
    assert!(made.status.success());
    let output = run(&[
        "bench",
        "-m",
        model,
        "--workers",
        "2",
        "--threads",
        "1",
        "--prompt",
        "300",
        "--gen",
        "30",
        "--parallel",
        "4",
        "--repeat",
        "1",
        "--ubatch",
        "32",
        "--json",
        "--trace",
        path,
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(model).unwrap();
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap();
    let trace = read(&file);
    check(&trace);
    for (row, name) in [(0, "prefill of 300"), (1, "decode of 30")] {
        let theirs: Vec<f64> = serde_json::from_value(rows[row]["stage_busy"].clone()).unwrap();
        let (from, to) = phase(&trace, name);
        let ours = busy(&trace, from, to);
        println!("{name}: bench says {theirs:?}, its trace {ours:?}");
        assert_eq!((theirs.len(), ours.len()), (N_STAGES, N_STAGES));
        for (a, b) in theirs.iter().zip(&ours) {
            assert!((a - b).abs() < CLOSE, "{name}: {theirs:?} and {ours:?}");
        }
    }
    let (from, to) = phase(&trace, "decode of 30");
    let events = trace["traceEvents"].as_array().unwrap();
    let rows_of = |what: &str| -> u64 {
        let ours = events.iter().filter(|e| e["name"] == "compute" && e["pid"] == 1);
        let ours = ours.filter(|e| (from..to).contains(&e["ts"].as_i64().unwrap()));
        ours.map(|e| e["args"][what].as_u64().unwrap()).sum()
    };
    // A prompt of one token each, then every token but the last goes through the line again.
    assert_eq!((rows_of("prefill_rows"), rows_of("decode_rows")), (4, 4 * 29));
}

fn a_server_writes_its_trace_when_it_ends_and_a_bad_path_is_refused_at_once() {
    let file = scratch("serve.json");
    let server =
        Server::start(&["--workers", "2", "--threads", "1", "--trace", file.to_str().unwrap()]);
    let ask = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6});
    server.chat(&ask);
    assert_eq!(server.process.stop(Duration::from_secs(60)), Some(0));
    let trace = read(&file);
    check(&trace);
    assert_eq!(trace["otherData"]["dropped_ubatches"], 0);

    let refused = run(&["run", "-n", "1", "--trace", "/nowhere/trace.json"]);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("/nowhere/trace.json"), "{told}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_benchs_busy_shares_can_be_read_from_its_trace,
        a_server_writes_its_trace_when_it_ends_and_a_bad_path_is_refused_at_once;
];

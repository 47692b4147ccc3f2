//! Answers constrained by schemas, expressions and grammars, through real workers. Every answer matches, and it is
//! the same on any line.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use brigade_tests::process::{Server, synth};
use brigade_tests::schemas::{misfit, schema};
use serde_json::{Value, json};

/// Clients at a time.
const CLIENTS: usize = 8;

/// Schemas that answers are held to.
const SCHEMAS: u64 = 200;

/// A random model writes words as they come: an answer that has not ended after so many tokens counts for
/// nothing.
const MAX_TOKENS: usize = 500;

fn json_of(body: &str) -> Value {
    serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body}"))
}

fn held(seed: u64, temperature: f64) -> Value {
    let format = json!({ "type": "json_schema",
        "json_schema": { "name": "x", "strict": true, "schema": schema(seed % SCHEMAS) } });
    json!({
        "messages": [{ "role": "user", "content": "Answer as you have to" }], "seed": seed,
        "max_tokens": MAX_TOKENS, "temperature": temperature, "top_k": 0, "top_p": 1, "min_p": 0,
        "response_format": format,
    })
}

fn choice(server: &Server, path: &str, body: &Value) -> Value {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 200, "{}\n{body}", reply.body);
    json_of(&reply.body)["choices"][0].clone()
}

/// Counts of answers by result.
#[derive(Debug, Default)]
struct Count {
    ended: AtomicUsize,
    cut: AtomicUsize,
    invalid: Mutex<Vec<String>>,
}

/// Draws answers number `from..to` and checks each.
fn draw(server: &Server, from: u64, to: u64) -> Count {
    let (next, count) = (AtomicUsize::new(from as usize), Count::default());
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed) as u64;
                    if seed >= to {
                        return;
                    }
                    let temperature = if seed.is_multiple_of(2) { 0.8 } else { 1.5 };
                    let choice = choice(server, "/v1/chat/completions", &held(seed, temperature));
                    check(&count, seed, &choice);
                }
            });
        }
    });
    count
}

fn check(count: &Count, seed: u64, choice: &Value) {
    if choice["finish_reason"] == "length" {
        count.cut.fetch_add(1, Ordering::Relaxed);
        return;
    }
    count.ended.fetch_add(1, Ordering::Relaxed);
    let text = choice["message"]["content"].as_str().unwrap();
    let wrong = match serde_json::from_str::<Value>(text) {
        Ok(value) => misfit(&schema(seed % SCHEMAS), &value),
        Err(error) => Some(error.to_string()),
    };
    if let Some(wrong) = wrong {
        count.invalid.lock().unwrap().push(format!("answer {seed}: {wrong}\n{text}"));
    }
}

fn assert_all_fit(name: &str, count: Count) {
    let (ended, cut) = (count.ended.into_inner(), count.cut.into_inner());
    let invalid = count.invalid.into_inner().unwrap();
    println!("{name}: {ended} answers ended, {cut} were cut off, {} do not fit", invalid.len());
    assert!(invalid.is_empty(), "{}", invalid.join("\n"));
    assert!(ended > 5 * cut, "too few answers end for this to say anything");
}

fn answers_fit_their_schemas() {
    let demo = Server::start(&["--workers", "2"]);
    assert_all_fit("demo model", draw(&demo, 0, SCHEMAS));
    let model = synth("qwen3", "tiny");
    let random = Server::start(&["-m", model.to_str().unwrap(), "--workers", "2"]);
    assert_all_fit("random model", draw(&random, 0, SCHEMAS / 2));
    std::fs::remove_file(model).unwrap();
}

/// `cargo test --release --test http -- --ignored constrained::`
fn ten_thousand_answers_fit_their_schemas() {
    let demo = Server::start(&["--workers", "2"]);
    assert_all_fit("demo model", draw(&demo, 0, 6_000));
    for (arch, begin) in [("qwen3", 6_000), ("mamba2", 8_000)] {
        let model = synth(arch, "tiny");
        let random = Server::start(&["-m", model.to_str().unwrap(), "--workers", "2"]);
        assert_all_fit(arch, draw(&random, begin, begin + 2_000));
        std::fs::remove_file(model).unwrap();
    }
}

/// Streams at once where the cost of masks is measured.
const STREAMS: usize = 32;

/// Tokens of each stream.
const STREAM_TOKENS: usize = 96;

/// Runs of each kind, in turns.
const PAIRS: usize = 7;

/// The cost of a token.
#[derive(Clone, Copy)]
struct Cost {
    /// Milliseconds from one to the next of the same stream.
    wall: f64,
    /// Milliseconds of all workers' processors: what a machine that does other things too shows rightly.
    busy: f64,
}

/// Milliseconds that the workers have computed.
fn busy_ms(server: &Server) -> f64 {
    let of = |pid: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
        // In hundredths of a second on Linux, for user and system.
        (ticks(11) + ticks(12)) * 10.0
    };
    server.process.children().into_iter().map(of).sum()
}

/// The constraint of the streams. No answer ends before its last token is drawn.
#[derive(Clone, Copy)]
enum Held {
    /// The streams are not constrained.
    Free,
    /// A JSON schema: objects with strings, numbers and choices.
    Schema,
    /// A regular expression of words that may hold 8 letters: nearly every mask walks over much of the vocabulary.
    Words,
}

impl Held {
    /// Adds it to a request; each stream has a grammar of its own.
    fn add_to(self, body: &mut Value, stream: usize) {
        let many = 10_000 + stream;
        match self {
            Self::Free => body["ignore_eos"] = json!(true),
            Self::Words => body["guided_regex"] = json!(format!("([a-z]{{1,8}}[ ,.]){{{many}}}")),
            Self::Schema => {
                let object = json!({
                    "type": "object", "required": ["name", "n", "tags", "at"], "additionalProperties": false,
                    "properties": {
                        "name": { "type": "string", "minLength": 1 }, "n": { "type": "integer" },
                        "tags": { "type": "array", "items": { "enum": ["red", "green", "blue"] }, "minItems": 3 },
                        "at": { "type": "number" },
                    },
                });
                body["guided_json"] = json!({ "type": "array", "minItems": many, "items": object });
            }
        }
    }
}

/// A token of many streams at once, each held to a form of its own, or free.
fn cost_of(server: &Server, held: Held) -> Cost {
    let one = |seed: usize| {
        let mut body =
            json!({ "prompt": "In the beginning", "seed": seed, "max_tokens": STREAM_TOKENS });
        held.add_to(&mut body, seed);
        let reply = json_of(&server.post("/v1/completions", &body).body);
        assert_eq!(reply["usage"]["completion_tokens"], STREAM_TOKENS, "{reply}");
        reply["timings"]["predicted_ms"].as_f64().unwrap() / (STREAM_TOKENS - 1) as f64
    };
    let before = busy_ms(server);
    let all: Vec<f64> = thread::scope(|scope| {
        let one = &one;
        let streams: Vec<_> = (0..STREAMS).map(|seed| scope.spawn(move || one(seed))).collect();
        streams.into_iter().map(|stream| stream.join().unwrap()).collect()
    });
    let busy = (busy_ms(server) - before) / (STREAMS * STREAM_TOKENS) as f64;
    Cost { wall: all.iter().sum::<f64>() / all.len() as f64, busy }
}

/// How much more a form costs than none, in per cent.
#[derive(Default)]
struct More {
    wall: Vec<f64>,
    busy: Vec<f64>,
}

impl More {
    fn add(&mut self, held: Cost, free: Cost) {
        self.wall.push((held.wall / free.wall - 1.0) * 100.0);
        self.busy.push((held.busy / free.busy - 1.0) * 100.0);
    }

    /// Medians, of time and of processors.
    fn medians(mut self) -> (f64, f64) {
        let median = |values: &mut Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        (median(&mut self.wall), median(&mut self.busy))
    }
}

/// `cargo test --release --test http -- --ignored constrained::masks`
fn masks_cost_little_beside_decode() {
    let model = synth("qwen3", "0.6b");
    let streams = STREAMS.to_string();
    let line = ["--workers", "2", "--max-seqs", &streams, "--ctx", "128"];
    let server = Server::start(&[&["-m", model.to_str().unwrap()], &line[..]].concat());
    // The first runs touch all memory.
    for held in [Held::Free, Held::Schema, Held::Words] {
        cost_of(&server, held);
    }
    let (mut schemas, mut words) = (More::default(), More::default());
    println!("{STREAMS} streams of {STREAM_TOKENS} tokens; ms a token, ms of processors a token");
    for _ in 0..PAIRS {
        let [free, schema, word] =
            [Held::Free, Held::Schema, Held::Words].map(|held| cost_of(&server, held));
        schemas.add(schema, free);
        words.add(word, free);
        for (what, cost) in [("free", free), ("schema", schema), ("words", word)] {
            println!("{what:>7}: {:.1}, {:.2}", cost.wall, cost.busy);
        }
    }
    let ((wall, busy), words) = (schemas.medians(), words.medians());
    println!("a schema costs, medians of {PAIRS}: time {wall:+.2} %, processors {busy:+.2} %");
    println!("words cost: time {:+.2} %, processors {:+.2} %", words.0, words.1);
    drop(server);
    std::fs::remove_file(model).unwrap();
    assert!(busy <= 3.0, "a schema's masks may cost 3 % of decode");
}

fn other_forms_hold_too_and_are_the_same_on_any_line() {
    let prompt = |more: Value| {
        let mut body = json!({ "prompt": "In the beginning", "max_tokens": 60, "temperature": 1.2, "seed": 4,
                               "logprobs": 1 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let forms = [
        (json!({ "guided_regex": "[A-Z][a-z]{3,8} and [a-z]{2,5}\\." }), "."),
        (json!({ "guided_choice": ["the heaven", "the earth"] }), "the "),
        (
            json!({ "grammar": "root ::= (item \", \"){3} \"end\"\nitem ::= [a-c]+ | [0-9]{2}" }),
            ", end",
        ),
        (json!({ "guided_grammar": "start: WORD (\" \" WORD){2}\nWORD: /[a-z]{1,6}/" }), " "),
        (json!({ "response_format": { "type": "json_object", "schema": schema(11) } }), ""),
    ];
    let answers = |workers: &str| -> Vec<Value> {
        let server = Server::start(&["--workers", workers]);
        forms
            .iter()
            .map(|(form, _)| choice(&server, "/v1/completions", &prompt(form.clone())))
            .collect()
    };
    let one = answers("1");
    for (choice, (form, part)) in one.iter().zip(&forms) {
        let text = choice["text"].as_str().unwrap();
        println!("{form}: {text:?}");
        assert_eq!(choice["finish_reason"], "stop", "{form}: {text:?}");
        assert!(text.contains(part), "{form}: {text:?}");
    }
    assert_eq!(one, answers("3"), "bit for bit");
}

fn whole(value: &Value) -> i128 {
    value.as_number().unwrap().as_i128().unwrap()
}

fn whole_numbers_are_held_from_the_lowest_i64_to_the_highest_u64() {
    let server = Server::start(&["--workers", "2"]);
    let (low, high) = (i128::from(i64::MIN), i128::from(u64::MAX));
    let edges = [low, low + 1, -(1 << 53) - 1, (1 << 53) + 1, i128::from(i64::MAX), high];
    for (seed, edge) in edges.into_iter().enumerate() {
        // Two numbers alone are within, and what goes before the number is the model's.
        let (least, most) = (edge.max(low + 1) - 1, edge);
        let parameters = json_of(&format!(
            r#"{{"type": "object", "required": ["n", "exactly"], "additionalProperties": false, "properties": {{
                "word": {{"enum": ["heaven", "earth"]}}, "n": {{"type": "integer", "minimum": {least}, "maximum": {most}}},
                "exactly": {{"const": {edge}}}}}}}"#
        ));
        let tool = json!({ "type": "function", "function": {
            "name": "count", "strict": true, "parameters": parameters } });
        let body = json!({
            "messages": [{ "role": "user", "content": "Count" }], "tools": [tool], "tool_choice": "required",
            "parallel_tool_calls": false, "seed": seed, "max_tokens": 200,
        });
        let choice = choice(&server, "/v1/chat/completions", &body);
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        let function = &choice["message"]["tool_calls"][0]["function"];
        let arguments = json_of(function["arguments"].as_str().unwrap());
        let n = whole(&arguments["n"]);
        assert!((least..=most).contains(&n), "{least} {most}: {function}");
        assert_eq!(whole(&arguments["exactly"]), edge, "{function}");
    }
    let beyond = json_of(
        r#"{"prompt": "a", "guided_json": {"type": "integer", "minimum": -9223372036854775809}}"#,
    );
    let reply = server.post("/v1/completions", &beyond);
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert_eq!(json_of(&reply.body)["error"]["param"], "guided_json.minimum");
}

fn a_required_call_has_arguments_that_fit() {
    let server = Server::start(&["--workers", "2"]);
    let parameters = |n: u64| {
        json!({
            "type": "object", "required": ["n", "words"], "additionalProperties": false,
            "properties": {
                "n": { "type": "integer", "minimum": n, "maximum": n + 50 },
                "words": { "type": "array", "items": { "enum": ["heaven", "earth"] }, "maxItems": 3 },
            },
        })
    };
    let tool = |name: &str, n| json!({ "type": "function", "function": { "name": name, "parameters": parameters(n) } });
    for (choice_of, seed) in
        [json!("required"), json!({ "type": "function", "function": { "name": "second" } })]
            .iter()
            .flat_map(|choice| (0..6).map(move |seed| (choice, seed)))
    {
        let body = json!({
            "messages": [{ "role": "user", "content": "Do it" }], "tools": [tool("first", 0), tool("second", 900)],
            "tool_choice": choice_of, "parallel_tool_calls": false, "seed": seed, "max_tokens": 200,
        });
        let choice = choice(&server, "/v1/chat/completions", &body);
        assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
        let function = &choice["message"]["tool_calls"][0]["function"];
        let arguments = json_of(function["arguments"].as_str().unwrap());
        let n = if function["name"] == "first" { 0 } else { 900 };
        assert_eq!(misfit(&parameters(n), &arguments), None, "{function}");
        if choice_of.is_object() {
            assert_eq!(function["name"], "second");
        }
    }
}

fn what_cannot_be_held_is_refused_by_its_path() {
    let server = Server::start(&["--workers", "1"]);
    for (more, path) in [
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x",
                "schema": { "properties": { "a": { "not": {} } } } } } }),
            "response_format.json_schema.schema.properties.a.not",
        ),
        (json!({ "guided_regex": "(" }), "guided_regex"),
        (json!({ "grammar": "root ::= missing" }), "grammar"),
        (json!({ "guided_choice": ["a"], "ignore_eos": true }), "guided_choice"),
    ] {
        let mut body = json!({ "messages": [{ "role": "user", "content": "x" }] });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.post("/v1/chat/completions", &body);
        assert_eq!(reply.status, 400, "{}", reply.body);
        let error = json_of(&reply.body)["error"].clone();
        assert_eq!(error["param"], path, "{error}");
    }
    // A ban of all that the form allows is found when a token is drawn.
    let banned = json!({ "prompt": "a", "guided_regex": "q{3}", "logit_bias": [["q", false], ["qq", false], ["qqq", false]] });
    let reply = server.post("/v1/completions", &banned);
    assert_eq!(reply.status, 400, "{}", reply.body);
    assert!(reply.body.contains("no token is left"), "{}", reply.body);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        answers_fit_their_schemas,
        other_forms_hold_too_and_are_the_same_on_any_line,
        a_required_call_has_arguments_that_fit,
        whole_numbers_are_held_from_the_lowest_i64_to_the_highest_u64,
        what_cannot_be_held_is_refused_by_its_path;
    alone:
        ten_thousand_answers_fit_their_schemas ignored("takes many minutes: for the night"),
        masks_cost_little_beside_decode ignored("a measurement: on a machine that does nothing else");
];

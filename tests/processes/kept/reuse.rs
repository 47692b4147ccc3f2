//! Prefix reuse with real workers: the next turn of a chat computes only its new tokens, and gives the same answer as
//! without reuse.

use std::time::{Duration, Instant};

use brigade_model_tests::each::each;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::kinds::{Named, one_of_each_memory, unquantised};
use brigade_tests::process::{Server, synth};
use serde_json::{Value, json};

const TURNS: usize = 5;
const ANSWER: u64 = 24;

/// For waits that end by themselves on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// No drafts: rows are counted.
const UNGUESSED: &[&str] = &["--speculate", "off"];

/// One answer, and its costs.
struct Turn {
    text: String,
    /// Text and log-probabilities of the answer.
    choice: Value,
    prompt: u64,
    cached: u64,
    /// Rows that the line computed for it.
    rows: u64,
}

/// A metric without labels that counts.
fn metric(server: &Server, name: &str) -> u64 {
    server.metric(name) as u64
}

fn message(role: &str, content: &str) -> Value {
    json!({ "role": role, "content": content })
}

fn ask(server: &Server, messages: &[Value]) -> Turn {
    let body = json!({ "messages": messages, "max_tokens": ANSWER, "temperature": 0,
                       "ignore_eos": true });
    let turn = post(server, "/v1/chat/completions", &body);
    Turn { text: turn.choice["message"]["content"].as_str().unwrap().to_owned(), ..turn }
}

fn complete(server: &Server, prompt: &[u32], max_tokens: u64) -> Turn {
    let body = json!({ "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 2,
                       "ignore_eos": true });
    post(server, "/v1/completions", &body)
}

fn post(server: &Server, path: &str, body: &Value) -> Turn {
    let before = metric(server, "brigade_ubatch_rows_total");
    let reply = server.post(path, body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let answer: Value = serde_json::from_str(&reply.body).unwrap();
    let usage = &answer["usage"];
    let turn = Turn {
        text: String::new(),
        choice: answer["choices"][0].clone(),
        prompt: usage["prompt_tokens"].as_u64().unwrap(),
        cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap(),
        rows: metric(server, "brigade_ubatch_rows_total") - before,
    };
    // The last token drawn has no row of its own.
    let drawn = body["max_tokens"].as_u64().unwrap();
    assert_eq!(turn.rows, turn.prompt - turn.cached + drawn - 1, "{usage}");
    turn
}

/// A chat of [`TURNS`] turns with both servers; returns its messages.
fn chat(model: &str, with: &Server, without: &Server) -> Vec<Value> {
    let questions: [&str; TURNS] =
        ["Who was in the garden?", "And who came to him?", "What did he say?", "Go on.", "And?"];
    let mut said = Vec::new();
    println!("| {model}: turn | prompt tokens | reused | rows with | rows without |");
    println!("|---|---|---|---|---|");
    let (mut rows_with, mut rows_without) = (0, 0);
    for (turn, question) in questions.iter().enumerate() {
        said.push(message("user", question));
        let (a, b) = (ask(with, &said), ask(without, &said));
        println!("| {turn} | {} | {} | {} | {} |", a.prompt, a.cached, a.rows, b.rows);
        assert_eq!(a.text, b.text, "turn {turn}");
        assert_eq!(b.cached, 0);
        assert_eq!(a.cached > 0, turn > 0, "turn {turn}");
        (rows_with, rows_without) = (rows_with + a.rows, rows_without + b.rows);
        said.push(message("assistant", &a.text));
    }
    println!("| all | | | {rows_with} | {rows_without} |");
    assert!(rows_with < rows_without);
    said
}

fn compare(model: &str, args: &[&str], keep: &str) {
    let with = Server::start(&[args, &["--keep", keep], UNGUESSED].concat());
    let without = Server::start(&[args, &["--keep", "0"], UNGUESSED].concat());
    let said = chat(model, &with, &without);

    // Two ways to go on after the first turn: both begin with its kept state.
    for question in ["What was his name?", "Where did they go?"] {
        let mut fork = said[..2].to_vec();
        fork.push(message("user", question));
        let (a, b) = (ask(&with, &fork), ask(&without, &fork));
        println!("fork: {} of {} reused", a.cached, a.prompt);
        assert!(a.cached > 0 && b.cached == 0);
        assert_eq!(a.text, b.text, "{question}");
    }
    let reused = metric(&with, "brigade_prompt_tokens_reused_total");
    assert!(reused > 0 && metric(&with, "brigade_kept_sequences") > 0);
    // The gauge follows the last answer with a delay.
    let deadline = Instant::now() + PATIENCE;
    while metric(&with, "brigade_kv_blocks_used") > 0 {
        assert!(Instant::now() < deadline, "pages are left over");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(metric(&without, "brigade_kept_sequences"), 0);
    assert_eq!(metric(&without, "brigade_prompt_tokens_reused_total"), 0);
}

fn a_chat_on_two_workers_computes_only_what_is_new_and_says_the_same() {
    for kv_type in ["f16", "q8_0"] {
        compare(&format!("demo, {kv_type}"), &["--workers", "2", "--kv-type", kv_type], "8");
    }
}

/// The same chat on a hybrid model, with a state at the end of each prompt and of each answer.
fn chat_on_a_hybrid(arch: &str, size: &str) {
    let path = synth(arch, size);
    let model = path.to_str().unwrap();
    compare(arch, &["-m", model, "--workers", "2", "--ctx", "2048"], "16");
    std::fs::remove_file(path).unwrap();
}

fn a_chat_on_granitehybrid_computes_only_what_is_new_and_says_the_same() {
    chat_on_a_hybrid("granitehybrid", "tiny");
}

fn a_chat_on_kimi_linear_computes_only_what_is_new_and_says_the_same() {
    chat_on_a_hybrid("kimi-linear", "tiny-moe");
}

fn a_chat_on_kimi_k3_computes_only_what_is_new_and_says_the_same() {
    chat_on_a_hybrid("kimi-k3", "tiny-deep");
}

fn what_is_kept_gives_way_and_nobody_waits_for_it() {
    // Pages for one sequence: each request takes those of the kept state.
    let server = Server::start(
        &[UNGUESSED, &["--workers", "2", "--max-seqs", "1", "--ctx", "128", "--keep", "3"]]
            .concat(),
    );
    for i in 0..6 {
        let said = [message("user", &format!("Number {i}"))];
        ask(&server, &said);
    }
    assert!((1..=4).contains(&metric(&server, "brigade_kept_sequences")));
    assert_eq!(metric(&server, "brigade_requests_waiting"), 0);
}

/// One model of each mixture of KV pages, recurrent states and windows; all of them at night.
fn every_kind_of_state_continues_as_if_all_of_it_had_been_computed() {
    let golden = Golden::repository();
    let models = one_of_each_memory(&golden);
    assert!(models.len() > 10, "{} kinds of state", models.len());
    all_continue(&golden, &models);
}

fn every_architecture_continues_as_if_it_had_computed_all_of_it() {
    let golden = Golden::repository();
    let models: Vec<_> = unquantised(&golden).collect();
    let has = |wanted: &str| models.iter().any(|(name, _)| *name == wanted);
    assert!(has("qwen3") && has("jamba"), "{} models", models.len());
    all_continue(&golden, &models);
}

/// Chats with each model, with kept states and without; log-probabilities are compared as well.
fn all_continue(golden: &Golden, models: &[Named<'_>]) {
    const DRAWN: u64 = 8;
    each(models, |(name, entry)| {
        let path = golden.model(entry);
        let args = ["-m", path.to_str().unwrap(), "--workers", "2", "--kv-type", "f32"];
        let with = Server::start(&[&args[..], UNGUESSED].concat());
        let without = Server::start(&[&args[..], &["--keep", "0"], UNGUESSED].concat());
        let both = |prompt: &[u32]| {
            let (a, b) = (complete(&with, prompt, DRAWN), complete(&without, prompt, DRAWN));
            assert_eq!(a.choice, b.choice, "{name}: after {} of {}", a.cached, a.prompt);
            assert_eq!(b.cached, 0);
            (a.cached as usize, a.rows, b.rows)
        };
        let first = golden.manifest.greedy_prompt.clone();
        let (mut prompt, mut table) = (first.clone(), vec![both(&first)]);
        // The answer comes back as it was given: its last token had no row of its own.
        prompt.extend(&entry.greedy[..DRAWN as usize]);
        prompt.extend([5, 6, 7]);
        table.push(both(&prompt));
        assert_eq!(table[1].0, first.len() + DRAWN as usize - 1, "{name}");
        // It comes back rewritten: only the prompt is as it was.
        for turn in 2..TURNS {
            let before = prompt.len();
            prompt.extend([10 + turn as u32, 20, 30, 40]);
            table.push(both(&prompt));
            // Where there is a state at one position only, that is before the prompt's last token.
            assert!((before - 1..prompt.len()).contains(&table[turn].0), "{name}: {table:?}");
        }
        // Two other ways to go on after the first prompt.
        for other in [50, 60] {
            let cached = both(&[&first[..], &[other, 7, 8]].concat()).0;
            assert!((first.len() - 1..=first.len()).contains(&cached), "{name}: {cached}");
        }
        let again = both(&first);
        assert_eq!(again.0, first.len() - 1, "{name}: an identical prompt computes one row");
        let rows = |of: fn(&(usize, u64, u64)) -> u64| table.iter().map(of).sum::<u64>();
        println!("{name}: {} rows with, {} without: {table:?}", rows(|t| t.1), rows(|t| t.2));
    });
    println!("{} models", models.len());
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        a_chat_on_two_workers_computes_only_what_is_new_and_says_the_same,
        a_chat_on_granitehybrid_computes_only_what_is_new_and_says_the_same,
        a_chat_on_kimi_linear_computes_only_what_is_new_and_says_the_same,
        a_chat_on_kimi_k3_computes_only_what_is_new_and_says_the_same,
        what_is_kept_gives_way_and_nobody_waits_for_it,
        every_kind_of_state_continues_as_if_all_of_it_had_been_computed;
    alone:
        every_architecture_continues_as_if_it_had_computed_all_of_it ignored("minutes: every golden model in processes");
];

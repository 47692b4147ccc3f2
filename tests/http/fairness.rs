//! One key floods a real server, another asks as usual: it is served in between. The measurement (at night) compares
//! its first tokens with those it gets alone.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_tests::process::{Server, post_with, run};
use brigade_tests::streams::prompt;
use serde_json::json;

/// A server with a key for each name, and their secrets.
fn start<const N: usize>(folder: &str, names: [&str; N], more: &[&str]) -> (Server, [String; N]) {
    let data = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fairness-{folder}"));
    // One that an earlier run has left.
    let _ = std::fs::remove_dir_all(&data);
    let data = data.to_str().unwrap();
    let secrets = names.map(|name| {
        let made = run(&["key", "create", name, "--data-dir", data]);
        String::from_utf8(made.stdout).unwrap().trim().to_owned()
    });
    let args = ["--workers", "2", "--threads", "1", "--data-dir", data];
    (Server::start(&[&args[..], more].concat()), secrets)
}

fn complete(server: &Server, secret: &str, body: &str) -> u16 {
    let reply = post_with(&server.url("/v1/completions"), body, "api-key", secret);
    reply.map_or(0, |reply| reply.status)
}

fn two_hundred_requests_of_one_key_do_not_make_another_wait() {
    let more = ["--max-seqs", "4", "--ctx", "512"];
    let (server, [greedy, usual]) = start("queue", ["greedy", "usual"], &more);
    let body = |n: usize, max_tokens: u32| {
        json!({ "prompt": "In the beginning", "max_tokens": max_tokens, "n": n, "temperature": 0.8,
                "ignore_eos": true })
        .to_string()
    };
    // A request of 64 answers asks for 64 places of the queue at once.
    let (long, short, sixty_four) = (body(1, 100), body(1, 4), body(64, 100));
    let (answered, refused) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let count = |status: u16| match status {
        200 => answered.fetch_add(1, Ordering::SeqCst),
        429 => refused.fetch_add(1, Ordering::SeqCst),
        other => panic!("the greedy key got {other}"),
    };
    std::thread::scope(|scope| {
        for _ in 0..200 {
            scope.spawn(|| count(complete(&server, &greedy, &long)));
        }
        let waiting = || server.metric("brigade_requests_waiting");
        let began = Instant::now();
        while waiting() < 150.0 {
            assert!(began.elapsed() < Duration::from_secs(60), "{} wait", waiting());
            std::thread::sleep(Duration::from_millis(10));
        }
        for _ in 0..4 {
            scope.spawn(|| count(complete(&server, &greedy, &sixty_four)));
        }
        std::thread::sleep(Duration::from_millis(300));
        let before = answered.load(Ordering::SeqCst);
        for _ in 0..10 {
            assert_eq!(complete(&server, &usual, &short), 200, "the queue is not full for it");
        }
        let meanwhile = answered.load(Ordering::SeqCst) - before;
        println!(
            "10 requests of the usual key while {meanwhile} of 200 of the greedy one were answered"
        );
        // A sequence of the other key takes 25 times as many tokens as one of these; in one queue, all 200 would
        // have been before the first.
        assert!(meanwhile < 100, "{meanwhile}");
        assert!(waiting() > 20.0, "the flood was over before: {} wait", waiting());
    });
    let (answered, refused) = (answered.into_inner(), refused.into_inner());
    println!("the greedy key: {answered} answered, {refused} refused");
    assert!(answered >= 100 && answered + refused == 204);
}

/// The cost of a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    reused_tokens: u64,
    computed_rows: u64,
}

/// Asks for an answer to a prompt, and measures its cost.
fn cost_of(server: &Server, secret: &str, prompt: &str) -> Cost {
    let rows = || server.metric("brigade_ubatch_rows_total") as u64;
    let body = json!({ "prompt": prompt, "max_tokens": 2, "temperature": 0, "ignore_eos": true });
    let before = rows();
    let reply = post_with(&server.url("/v1/completions"), &body.to_string(), "api-key", secret);
    let answer: serde_json::Value = serde_json::from_str(&reply.unwrap().body).unwrap();
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    Cost { reused_tokens: cached.as_u64().unwrap(), computed_rows: rows() - before }
}

fn what_a_key_has_asked_is_no_hit_for_another() {
    let (server, [mine, others]) =
        start("kept", ["mine", "others"], &["--ctx", "512", "--keep", "4"]);
    let prompt = "In the beginning the letters of a secret were sent by one key alone. ".repeat(4);
    let cold = cost_of(&server, &mine, &prompt);
    let again = cost_of(&server, &mine, &prompt);
    let guessed = cost_of(&server, &others, &prompt);
    let own = cost_of(&server, &others, &prompt);
    println!("{cold:?}, again {again:?}; another key {guessed:?}, again {own:?}");
    assert_eq!(cold.reused_tokens, 0);
    let is_cheaper = again.reused_tokens > 0 && again.computed_rows < cold.computed_rows;
    assert!(is_cheaper, "what is kept is of use to its owner");
    // The time that a guesser could measure follows from the rows.
    assert_eq!(guessed, cold, "and for another key it is as if it were not there");
    assert_eq!(own, again, "each has its own");
}

/// Milliseconds to the first token of a streamed completion.
fn first_token(to: SocketAddr, secret: &str, body: &str) -> f64 {
    let began = Instant::now();
    let mut stream = TcpStream::connect(to).unwrap();
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {secret}\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    lines.find(|line| line.starts_with("data: ")).expect("a first event");
    let first = began.elapsed().as_secs_f64() * 1e3;
    lines.for_each(drop);
    first
}

/// Times to first tokens, in milliseconds.
#[derive(Clone, Copy, Debug)]
struct Percentiles {
    p50: f64,
    p95: f64,
}

impl Percentiles {
    fn of(mut times: Vec<f64>) -> Self {
        times.sort_by(f64::total_cmp);
        let at = |share: usize| times[(times.len() - 1) * share / 100];
        Self { p50: at(50), p95: at(95) }
    }
}

fn first_tokens_beside_ten_times_the_load() {
    let (server, [greedy, usual]) = start("load", ["greedy", "usual"], &["--ctx", "2048"]);
    let to: SocketAddr = server.process.ready.trim_start_matches("http://").parse().unwrap();
    // No two prompts begin alike: all of them are computed.
    let body = |i: usize, stream: bool| {
        json!({ "prompt": format!("{i} {}", "and the sons of men ".repeat(60)), "max_tokens": 64,
                "ignore_eos": true, "stream": stream })
        .to_string()
    };
    let measure = || {
        let ask = |i| {
            std::thread::sleep(Duration::from_millis(200));
            first_token(to, &usual, &body(i, true))
        };
        Percentiles::of((0..20).map(ask).collect())
    };
    let alone = measure();
    let over = AtomicBool::new(false);
    let numbers = AtomicUsize::new(1000);
    let flooded = std::thread::scope(|scope| {
        for _ in 0..40 {
            scope.spawn(|| {
                while !over.load(Ordering::SeqCst) {
                    let i = numbers.fetch_add(1, Ordering::SeqCst);
                    complete(&server, &greedy, &body(i, false));
                }
            });
        }
        std::thread::sleep(Duration::from_secs(5));
        let flooded = measure();
        over.store(true, Ordering::SeqCst);
        flooded
    });
    println!(
        "first token, ms: alone p50 {:.0}, p95 {:.0}; flooded p50 {:.0}, p95 {:.0}: {:.2} times",
        alone.p50,
        alone.p95,
        flooded.p50,
        flooded.p95,
        flooded.p95 / alone.p95
    );
    assert!(flooded.p95 <= 2.0 * alone.p95, "{flooded:?} after {alone:?}");
}

/// The median of some times, and the median of their distances from it.
fn median_and_noise(times: &[f64]) -> (f64, f64) {
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let middle = median(times.to_vec());
    (middle, median(times.iter().map(|time| (time - middle).abs()).collect()))
}

/// The published attacks, by time: a guesser compares a prompt that another key has sent lately with one that no key
/// has sent. The times are printed, of its owner's repetition too, which show what a hit would be. The test asserts
/// the cause: no token of any of the guesser's prompts was reused.
fn times_of_prompts_that_another_key_has_sent() {
    const PAIRS: u64 = 30;
    const TOKENS: u64 = 900;
    let (server, [mine, guesser]) =
        start("times", ["mine", "guesser"], &["--keep", "16", "--ctx", "1024"]);
    let to: SocketAddr = server.process.ready.trim_start_matches("http://").parse().unwrap();
    let reused = || server.metric("brigade_prompt_tokens_reused_total") as u64;
    let ask = |secret: &str, seed: u64| {
        let body = json!({ "prompt": prompt(seed, TOKENS), "max_tokens": 2, "ignore_eos": true, "stream": true });
        let before = reused();
        let took = first_token(to, secret, &body.to_string());
        (took, reused() - before)
    };
    // Five prompts that are not used below: then memory is mapped, and the scheduler has measured times.
    for seed in 100..105 {
        ask(&guesser, seed);
    }
    let [mut sent, mut unsent, mut own] = [const { Vec::new() }; 3];
    for pair in 0..PAIRS {
        let (secret, nobodys) = (2 * pair, 2 * pair + 1);
        assert_eq!(ask(&mine, secret).1, 0);
        // In turns, so that what changes over time is in both.
        let order = if pair % 2 == 0 { [secret, nobodys] } else { [nobodys, secret] };
        for seed in order {
            let (took, reused) = ask(&guesser, seed);
            assert_eq!(reused, 0, "a token of another key's prompt was there");
            if seed == secret { sent.push(took) } else { unsent.push(took) }
        }
        let (took, reused) = ask(&mine, secret);
        assert!(reused > TOKENS / 2, "its owner has it: {reused}");
        own.push(took);
    }
    let faster = sent.iter().flat_map(|a| unsent.iter().map(move |b| a < b));
    let share = faster.filter(|faster| *faster).count() as f64 / (PAIRS * PAIRS) as f64;
    println!("| first token of {TOKENS} tokens, ms | median | noise |");
    println!("|---|---|---|");
    for (what, times) in [
        ("that the other key sent", &sent),
        ("that nobody sent", &unsent),
        ("its owner's again", &own),
    ] {
        let (median, noise) = median_and_noise(times);
        println!("| {what} | {median:.2} | {noise:.2} |");
    }
    println!(
        "sent ones are faster than unsent ones in {:.0} % of all pairs (50: no trace)",
        share * 100.0
    );
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    alone:
        two_hundred_requests_of_one_key_do_not_make_another_wait,
        what_a_key_has_asked_is_no_hit_for_another,
        times_of_prompts_that_another_key_has_sent ignored("times of 30 pairs of prompts: cargo test --release --workspace --test http -- --ignored --nocapture fairness::times"),
        first_tokens_beside_ten_times_the_load ignored("a measurement of a minute on a quiet machine: cargo test --release --workspace --test http -- --ignored fairness::");
];

//! Room for sequences: slots of a model with recurrent states, and a context's pages.
//!
//! A request that finds no slot waits. One that can never have one is told why, with the numbers. States beyond a machine's
//! memory are refused before anything is loaded. A context is the model's own, or as long as memory allows.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use brigade_tests::process::{Server, get, run, synth};
use serde_json::{Value, json};

const SLOTS: usize = 2;
const REQUESTS: usize = 6;

fn request(i: usize) -> Value {
    json!({
        "messages": [{ "role": "user", "content": format!("{i}, and then?") }],
        "max_tokens": 300, "temperature": 0.9, "seed": i, "ignore_eos": true,
    })
}

/// `[running, waiting]`: sequences that run, and requests that wait.
fn load(server: &Server) -> [f64; 2] {
    let running = |phase| server.metric(&format!("brigade_requests_running{{phase=\"{phase}\"}}"));
    [running("prefill") + running("decode"), server.metric("brigade_requests_waiting")]
}

fn who_finds_no_slot_waits_and_who_never_fits_is_told_the_numbers() {
    let path = synth("mamba", "tiny");
    let model = path.to_str().unwrap();
    let slots = SLOTS.to_string();
    let args = ["-m", model, "--workers", "2", "--max-seqs", &slots, "--ctx", "512", "--keep", "0"];
    let server = Arc::new(Server::start(&args));
    let alone: Vec<String> = (0..REQUESTS).map(|i| server.chat(&request(i))).collect();
    let ended = Arc::new(AtomicBool::new(false));
    let watch = {
        let (server, ended) = (Arc::clone(&server), Arc::clone(&ended));
        std::thread::spawn(move || {
            let mut most = [0.0; 2];
            while !ended.load(Ordering::Relaxed) {
                let seen = load(&server);
                most = [0, 1].map(|i| f64::max(most[i], seen[i]));
            }
            most
        })
    };
    let together: Vec<_> = (0..REQUESTS)
        .map(|i| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || server.chat(&request(i)))
        })
        .collect();
    for (i, answer) in together.into_iter().enumerate() {
        assert_eq!(answer.join().unwrap(), alone[i], "request {i} among more than there are slots");
    }
    ended.store(true, Ordering::Relaxed);
    let [running, waiting] = watch.join().unwrap();
    println!("at most {running} of {REQUESTS} ran at once, {waiting} waited");
    assert!(running <= SLOTS as f64, "{running} ran at once");
    assert!(waiting > 0.0, "nobody waited");

    let long = json!({ "prompt": vec![5; 600], "max_tokens": 8 });
    let reply = server.post("/v1/completions", &long);
    assert_eq!(reply.status, 400, "{}", reply.body);
    let error = &serde_json::from_str::<Value>(&reply.body).unwrap()["error"];
    assert_eq!(error["code"], "context_length_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("600") && message.contains("512"), "{message}");
    drop(server);
    fs::remove_file(path).unwrap();
}

fn states_that_no_machine_holds_are_refused_before_anything_is_loaded() {
    let path = synth("mamba2", "tiny");
    let cluster = path.with_extension("toml");
    let machine = "[[worker]]\nname = \"small\"\nmemory = \"200M\"\ngbps = 20.0\ngops = 500.0\n";
    fs::write(&cluster, machine).unwrap();
    let plan = |max_seqs: &str| {
        let [model, cluster] = [&path, &cluster].map(|p| p.to_str().unwrap());
        let keep = ["--max-seqs", max_seqs, "--keep", "0"];
        run(&[&["plan", "-m", model, "--cluster", cluster], &keep[..]].concat())
    };
    let (fits, refused) = (plan("16"), plan("400"));
    fs::remove_file(&path).unwrap();
    fs::remove_file(&cluster).unwrap();
    assert!(fits.status.success(), "{}", String::from_utf8_lossy(&fits.stderr));
    assert!(!refused.status.success());
    let why = String::from_utf8_lossy(&refused.stderr);
    for words in ["does not fit", "small lacks"] {
        assert!(why.contains(words), "{words}: {why}");
    }
    // Four layers: three inputs of 768 channels, eight heads' states of 64 by 128, in f32.
    let states = |n: f64| n * 4.0 * 4.0 * (3.0 * 768.0 + 8.0 * 64.0 * 128.0) / 1024.0 / 1024.0;
    let after = |text: &str, word: &str| text.split(word).nth(1).unwrap().to_owned();
    let help = after(&why, "--max-seqs ");
    let n: f64 = help.split(' ').next().unwrap().parse().unwrap();
    let frees = format!("(frees {:.2} MiB of states)", states(400.0 - n));
    assert!((16.0..400.0).contains(&n) && help.contains(&frees), "{frees}: {why}");
}

/// Positions of a page.
const PAGE: u32 = 64;

/// With default options a program's prompt fits. Codex sends 6,000 tokens before its user has said anything, others 12,000.
fn the_context_is_the_models_own_and_an_answer_has_room() {
    let path = synth("qwen3", "tiny");
    let model = path.to_str().unwrap();
    let server = Server::start(&["-m", model, "--workers", "2"]);
    let models: Value =
        serde_json::from_str(&get(&server.url("/v1/models")).unwrap().body).unwrap();
    let n_ctx = models["data"][0]["context_length"].as_u64().unwrap();
    assert_eq!(models["data"][0]["meta"]["n_ctx_train"], n_ctx, "{models}");
    let n_prompt = 12_000u64;
    assert!(n_prompt < n_ctx, "{n_ctx}");
    let prompt: Vec<u64> = (0..n_prompt).map(|i| 5 + i % 200).collect();
    let body = json!({ "prompt": prompt, "max_tokens": 1, "ignore_eos": true });
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    println!("a context of {n_ctx}, and a prompt of {n_prompt}");
    let chat = json!({
        "messages": [{ "role": "user", "content": "And then?" }], "ignore_eos": true, "seed": 1,
    });
    // Where a request names no limit, an answer goes on past a thousand tokens.
    server.chat_hang_up(&chat, 1100);
    drop(server);
    fs::remove_file(path).unwrap();
}

fn a_context_that_memory_does_not_allow_is_as_long_as_it_does() {
    let path = synth("qwen3", "tiny");
    let cluster = path.with_extension("toml");
    let machine = "[[worker]]\nname = \"small\"\nmemory = \"160M\"\ngbps = 20.0\ngops = 500.0\n";
    fs::write(&cluster, machine).unwrap();
    let [model, file] = [&path, &cluster].map(|p| p.to_str().unwrap());
    let plan = |more: &[&str]| run(&[&["plan", "-m", model, "--cluster", file], more].concat());
    let fits = plan(&[]);
    let text = String::from_utf8_lossy(&fits.stdout).into_owned();
    assert!(fits.status.success(), "{}", String::from_utf8_lossy(&fits.stderr));
    let note = "note: a context of ";
    let told = text.split(note).nth(1).unwrap_or_else(|| panic!("no {note:?}: {text}"));
    let n_ctx: u32 = told.split(' ').next().unwrap().parse().unwrap();
    assert!(told.contains("instead of the model's") && told.contains("--kv-type q8_0"), "{told}");
    // It is what fits, and a page more does not.
    assert!(n_ctx >= 4096, "{text}");
    let asked = |n: u32| plan(&["--ctx", &n.to_string()]).status.success();
    assert!(asked(n_ctx) && !asked(n_ctx + PAGE), "{n_ctx}: {text}");
    let json: Value = serde_json::from_slice(&plan(&["--json"]).stdout).unwrap();
    assert_eq!(json["capacity"]["n_blocks"], n_ctx / PAGE, "{json}");
    // A server says the same to clients, with the numbers where a prompt is too long.
    let server = Server::start(&["-m", model, "--workers", "1", "--memory", "160M"]);
    let models: Value =
        serde_json::from_str(&get(&server.url("/v1/models")).unwrap().body).unwrap();
    let of_server = models["data"][0]["context_length"].as_u64().unwrap();
    assert_eq!(of_server, u64::from(n_ctx), "{models}");
    let long = json!({ "prompt": vec![5; n_ctx as usize + 1], "max_tokens": 1 });
    let reply = server.post("/v1/completions", &long);
    assert!(reply.status == 400 && reply.body.contains(&n_ctx.to_string()), "{}", reply.body);
    drop(server);
    fs::remove_file(&path).unwrap();
    fs::remove_file(&cluster).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        the_context_is_the_models_own_and_an_answer_has_room;
    waits:
        a_context_that_memory_does_not_allow_is_as_long_as_it_does,
        who_finds_no_slot_waits_and_who_never_fits_is_told_the_numbers,
        states_that_no_machine_holds_are_refused_before_anything_is_loaded;
];

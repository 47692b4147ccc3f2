//! Few slots, on a model with recurrent states. A request that finds none waits. One that can never have one
//! is told why, with the numbers. States beyond a machine's memory are refused before anything is loaded.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use brigade_tests::process::{Server, run, synth};
use serde_json::{Value, json};

const SLOTS: usize = 2;
const REQUESTS: usize = 6;

fn request(i: usize) -> Value {
    json!({
        "messages": [{ "role": "user", "content": format!("{i}, and then?") }],
        "max_tokens": 300, "temperature": 0.9, "seed": i, "ignore_eos": true,
    })
}

/// Sequences that run, and requests that wait.
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

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        who_finds_no_slot_waits_and_who_never_fits_is_told_the_numbers,
        states_that_no_machine_holds_are_refused_before_anything_is_loaded;
];

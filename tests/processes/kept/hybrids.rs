//! Models with recurrent state over real worker processes: many streams at once, some of which are abandoned by their
//! clients. Nothing is left behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_tests::process::{Server, synth};
use serde_json::{Value, json};

const STREAMS: usize = 16;

/// For waits that end by themselves on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Requests of unequal prompts, lengths and settings; each with its own seed.
fn request(i: usize) -> Value {
    let prompt = "And the evening and the morning were the day. ".repeat(1 + i * i % 7);
    json!({
        "messages": [{"role": "user", "content": format!("{i}. {prompt}")}],
        "max_tokens": 10 + 9 * (i % 5),
        "temperature": if i.is_multiple_of(3) { 0.0 } else { 0.9 },
        "seed": 500 + i,
        "ignore_eos": true,
    })
}

/// Every third client leaves after a few pieces; the others read the same as alone, and afterwards no slot and no
/// page is taken.
fn streams_with_cancellations(arch: &str, size: &str) {
    let path = synth(arch, size);
    let model = path.to_str().unwrap();
    let args = ["-m", model, "--workers", "3", "--max-seqs", "16", "--ctx", "1024", "--keep", "0"];
    let server = Arc::new(Server::start(&args));
    let alone: Vec<String> = (0..STREAMS).map(|i| server.chat(&request(i))).collect();
    let together: Vec<_> = (0..STREAMS)
        .map(|i| {
            let server = Arc::clone(&server);
            std::thread::spawn(move || match i % 3 {
                2 => {
                    server.chat_hang_up(&request(i), 1 + i % 4);
                    None
                }
                _ => Some(server.chat_stream(&request(i))),
            })
        })
        .collect();
    let mut finished = 0;
    for (i, stream) in together.into_iter().enumerate() {
        let Some(seen) = stream.join().unwrap() else { continue };
        assert_eq!(seen.error, None, "{arch}: stream {i}");
        assert!(seen.done, "{arch}: stream {i} has no end");
        assert_eq!(seen.text, alone[i], "{arch}: stream {i} among others");
        finished += 1;
    }
    let held = || {
        let running =
            |phase| server.metric(&format!("brigade_requests_running{{phase=\"{phase}\"}}"));
        running("prefill") + running("decode") + server.metric("brigade_kv_blocks_used")
    };
    let deadline = Instant::now() + PATIENCE;
    while held() > 0.0 {
        assert!(Instant::now() < deadline, "{arch}: slots or pages are left over");
        std::thread::sleep(Duration::from_millis(20));
    }
    println!(
        "{arch}: {finished} of {STREAMS} streams equal to lone runs, the others were left; nothing is held"
    );
    drop(server);
    std::fs::remove_file(path).unwrap();
}

fn sixteen_streams_on_granitehybrid() {
    streams_with_cancellations("granitehybrid", "tiny");
}

fn sixteen_streams_on_kimi_linear() {
    streams_with_cancellations("kimi-linear", "tiny-moe");
}

fn sixteen_streams_on_kimi_k3() {
    streams_with_cancellations("kimi-k3", "tiny-deep");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        sixteen_streams_on_granitehybrid,
        sixteen_streams_on_kimi_linear,
        sixteen_streams_on_kimi_k3;
];

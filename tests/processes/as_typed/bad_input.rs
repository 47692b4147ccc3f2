//! Malformed model files and requests: each gets an error that names the problem, and none a crash. Frames between
//! workers have their own list in the worker's tests (`lane.rs`).

use std::path::Path;

use brigade_model_tests::golden::Golden;
use brigade_tests::process::{Server, is_alive, post, run};
use serde_json::json;

/// A way to damage a model file, and what the message must name.
type Damage = (&'static str, fn(&mut Vec<u8>), &'static str);

const FILES: [Damage; 20] = [
    ("empty", |b| b.clear(), "magic"),
    ("other first bytes", |b| b[..4].copy_from_slice(b"GGML"), "magic"),
    ("version 1", |b| put(b, 4, &1u32.to_le_bytes()), "version"),
    ("big-endian version", |b| put(b, 4, &3u32.to_be_bytes()), "big-endian"),
    ("2^62 tensors", |b| put(b, 8, &(1u64 << 62).to_le_bytes()), "tensor"),
    ("-1 keys", |b| put(b, 16, &u64::MAX.to_le_bytes()), "key"),
    ("key of 2^40 bytes", |b| put(b, 24, &(1u64 << 40).to_le_bytes()), "key"),
    ("cut in the metadata", |b| b.truncate(200), "key"),
    (
        "cut in the directory",
        |b| b.truncate(b.windows(9).position(|w| w == b"blk.3.ffn").unwrap()),
        "tensor",
    ),
    ("cut in the data", |b| b.truncate(b.len() - 100), "tensor"),
    (
        "key of no type",
        |b| after(b, "general.architecture", 0, &77u32.to_le_bytes()),
        "general.architecture",
    ),
    (
        "2^62 columns",
        |b| after(b, "token_embd.weight", 4, &(1u64 << 62).to_le_bytes()),
        "token_embd.weight",
    ),
    (
        "9 dimensions",
        |b| after(b, "token_embd.weight", 0, &9u32.to_le_bytes()),
        "token_embd.weight",
    ),
    (
        "tensor type 99",
        |b| after(b, "token_embd.weight", 20, &99u32.to_le_bytes()),
        "token_embd.weight",
    ),
    (
        "misaligned tensor",
        |b| after(b, "blk.1.attn_q.weight", 24, &4u64.to_le_bytes()),
        "blk.1.attn_q.weight",
    ),
    (
        "overlapping tensors",
        |b| after(b, "blk.1.attn_q.weight", 24, &0u64.to_le_bytes()),
        "blk.1.attn_q.weight",
    ),
    (
        "tensor beyond the file",
        |b| after(b, "blk.1.attn_q.weight", 24, &(1u64 << 40).to_le_bytes()),
        "blk.1.attn_q.weight",
    ),
    (
        "two tensors of one name",
        |b| rename(b, "blk.1.attn_q.weight", "blk.0.attn_q.weight"),
        "blk.0.attn_q.weight",
    ),
    ("unknown architecture", |b| after(b, "general.architecture", 12, b"lxama"), "lxama"),
    ("missing key", |b| rename(b, "llama.block_count", "llama.block_cound"), "llama.block_count"),
];

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Overwrites what lies `skip` bytes after the first occurrence of `name`.
fn after(bytes: &mut [u8], name: &str, skip: usize, value: &[u8]) {
    let found = bytes.windows(name.len()).position(|w| w == name.as_bytes()).unwrap();
    put(bytes, found + name.len() + skip, value);
}

fn rename(bytes: &mut [u8], from: &str, to: &str) {
    let found = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
    put(bytes, found, to.as_bytes());
}

fn malformed_files_are_refused_with_the_field() {
    let good = std::fs::read(Golden::repository().folder.join("llama.gguf")).unwrap();
    let folder = std::env::temp_dir().join(format!("brigade-bad-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (what, damage, field) in FILES {
        let mut bytes = good.clone();
        damage(&mut bytes);
        let path = folder.join(format!("{}.gguf", what.replace(' ', "-")));
        std::fs::write(&path, &bytes).unwrap();
        let message = refusal(&path);
        println!("file | {what} | {message}");
        assert!(message.contains(field), "{what}: the message does not name {field}: {message}");
    }
    println!("file | does not exist | {}", refusal(&folder.join("nothing.gguf")));
    println!("file | is a folder | {}", refusal(&folder));
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The error of `logits` for a file that it must refuse.
fn refusal(path: &Path) -> String {
    let path = path.to_str().unwrap();
    let out = Path::new(path).with_extension("npy");
    let out = out.to_str().unwrap();
    let output = run(&["logits", "-m", path, "--tokens", "1,2", "--workers", "1", "--out", out]);
    let message = String::from_utf8_lossy(&output.stderr).trim().replace(path, "FILE");
    assert_eq!(output.status.code(), Some(1), "{path}: {message}");
    assert!(!message.contains("panicked"), "{path}: {message}");
    message
}

fn malformed_requests_are_refused_with_the_field() {
    let server = Server::start(&["--workers", "2", "--ctx", "256"]);
    let chat = "/v1/chat/completions";
    let message = json!([{"role": "user", "content": "Hi"}]);
    let long = "and ".repeat(2000);
    let cases = [
        (chat, "not JSON".to_owned(), 400, ""),
        (chat, "{\"messages\": [".to_owned(), 400, ""),
        (chat, "[]".to_owned(), 400, ""),
        (chat, json!({}).to_string(), 400, "messages"),
        (chat, json!({"messages": []}).to_string(), 400, "messages"),
        (chat, json!({"messages": "Hi"}).to_string(), 400, "messages"),
        (chat, json!({"messages": [{"content": "Hi"}]}).to_string(), 400, "role"),
        (chat, json!({"messages": message, "max_tokens": 0}).to_string(), 400, "max_tokens"),
        (chat, json!({"messages": message, "max_tokens": -3}).to_string(), 400, "max_tokens"),
        (chat, json!({"messages": message, "temperature": "hot"}).to_string(), 400, "temperature"),
        (chat, json!({"messages": message, "temperature": -1}).to_string(), 400, "temperature"),
        (chat, json!({"messages": message, "top_p": 7}).to_string(), 400, "top_p"),
        (chat, json!({"messages": message, "n": 100_000}).to_string(), 400, "n"),
        (
            chat,
            json!({"messages": message, "logit_bias": {"x": "much"}}).to_string(),
            400,
            "logit_bias",
        ),
        (chat, json!({"messages": message, "stop": 5}).to_string(), 400, "stop"),
        (chat, json!({"messages": [{"role": "user", "content": long}]}).to_string(), 400, "256"),
        ("/v1/completions", json!({}).to_string(), 400, "prompt"),
        ("/v1/completions", json!({"prompt": [1, -5]}).to_string(), 400, "prompt"),
        ("/v1/completions", json!({"prompt": [1, 9_999_999]}).to_string(), 400, "9999999"),
        ("/v1/completions", json!({"prompt": "Hi", "logprobs": 1000}).to_string(), 400, "logprobs"),
        ("/v1/nothing", "{}".to_owned(), 404, ""),
    ];
    for (path, body, status, field) in cases {
        let reply = post(&server.url(path), &body).unwrap();
        let shown: String = body.chars().take(70).collect();
        println!("request | {path} {shown} | {} {}", reply.status, reply.body.trim());
        assert_eq!(reply.status, status, "{path} {shown}: {}", reply.body);
        assert!(reply.body.contains(field), "{shown}: does not name {field}: {}", reply.body);
    }
    assert!(is_alive(server.process.pid()));
    assert_eq!(server.process.children().len(), 2, "no worker was lost");
    assert!(!server.chat(&json!({"messages": message, "max_tokens": 4})).is_empty());
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        malformed_files_are_refused_with_the_field,
        malformed_requests_are_refused_with_the_field;
];

//! Low-rank adapters over real workers. They reach the workers that hold the layers, and each request uses its own.
//! States that one adapter computed are not reused with another, and streams go on with theirs when a worker is lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use brigade_gguf::Gguf;
use brigade_model_tests::golden::{Golden, rows_of, same_bits};
use brigade_model_tests::line::{Line, LineConfig};
use brigade_synth::{AdapterSpec, write_adapter};
use brigade_tests::older::Older;
use brigade_tests::process::{Running, Server, get, run, signal, synth};
use serde_json::{Value, json};

/// A folder of this test's own.
fn folder(test: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("brigade-lora-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn adapter(model: &Path, folder: &Path, name: &str, seed: u64) -> PathBuf {
    let path = folder.join(format!("{name}.gguf"));
    let spec = AdapterSpec { rank: 4, alpha: 8.0, seed };
    write_adapter(&Gguf::open(model).unwrap(), &spec, &path).unwrap();
    path
}

fn ok(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn workers_with_and_without_the_files_compute_the_same_bits_as_one_process() {
    let folder = folder("files");
    let model = Golden::repository().named("llama");
    let (a, b) = (adapter(&model, &folder, "a", 1), adapter(&model, &folder, "b", 2));
    let tokens = &Golden::repository().manifest.tokens[..20];
    let config = LineConfig {
        adapters: vec![a.clone(), b.clone()],
        uses: vec![(0, 1.0), (1, 0.5)],
        ..LineConfig::default()
    };
    let alone = Line::open(&model, &config).logits(tokens, 64);
    let plain = Line::open(&model, &LineConfig::default()).logits(tokens, 64);
    assert!(!same_bits(&alone, &plain));
    let ids: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let ids = ids.join(",");
    let (half, model) = (format!("{}=0.5", b.display()), model.to_str().unwrap());
    let cache = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let start = |name: &str| {
        let args =
            ["worker", "--listen", "127.0.0.1:0", "--no-model-files", "--cache-dir", &cache(name)];
        Running::start(&args, brigade_worker::run::READY_PREFIX)
    };
    let workers = [start("one"), start("two"), start("three")];
    let addresses = workers.each_ref().map(|worker| worker.ready.trim().to_owned());
    let far: Vec<&str> = addresses.iter().flat_map(|a| ["--worker", a.as_str()]).collect();
    // The far line runs twice: the second time its workers have the tensors in their caches.
    for (i, line) in
        [vec!["--workers", "1"], vec!["--workers", "3"], far.clone(), far].iter().enumerate()
    {
        let out = folder.join(format!("{i}.npy"));
        let mut args =
            vec!["logits", "-m", model, "--tokens", &ids, "--out", out.to_str().unwrap()];
        args.extend(["--lora", a.to_str().unwrap(), "--lora", &half]);
        args.extend(line);
        ok(&args);
        assert!(same_bits(&rows_of(&out), &alone), "{line:?}");
    }
    // The plan counts an adapter's matrices: as f32 or smaller, with a part of the file that is no tensor.
    let plan = |lora: &[&str]| {
        let args = ["plan", "-m", model, "--workers", "2", "--json"];
        let said = ok(&[&args[..], lora].concat());
        let plan: Value = serde_json::from_str(&said).unwrap();
        let stages = plan["stages"].as_array().unwrap().clone();
        stages.iter().map(|stage| stage["memory"]["weights"].as_u64().unwrap()).sum::<u64>()
    };
    let more = plan(&["--lora", a.to_str().unwrap()]) - plan(&[]);
    let file = std::fs::metadata(&a).unwrap().len();
    println!("the plan has {more} bytes more with an adapter of {file} bytes");
    assert!(more > file / 2, "an adapter of {file} bytes takes {more} in the plan");
    std::fs::remove_dir_all(folder).unwrap();
}

/// Greedy text of a completion, and the tokens of its prompt that were reused.
fn complete(server: &Server, prompt: &str, lora: &Value) -> (String, u64) {
    let mut body =
        json!({"prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    if *lora != json!("unsaid") {
        body["lora"] = lora.clone();
    }
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let json: Value = serde_json::from_str(&reply.body).unwrap();
    let reused = json["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0);
    (json["choices"][0]["text"].as_str().unwrap().to_owned(), reused)
}

fn each_request_uses_its_own_adapters_and_no_other_ones_prefix() {
    let folder = folder("http");
    let model = synth("llama", "tiny");
    let (a, b) = (adapter(&model, &folder, "a", 1), adapter(&model, &folder, "b", 2));
    let zero = format!("{}=0", b.display());
    let (path, lora) = (model.to_str().unwrap(), a.to_str().unwrap());
    let server = |more: &[&str]| {
        let args =
            ["-m", path, "--workers", "2", "--lora", lora, "--lora", &zero, "--max-seqs", "6"];
        Server::start(&[&args[..], more].concat())
    };
    let wishes = [
        json!("unsaid"),
        json!([]),
        json!("b"),
        json!([{"id": 0, "scale": 0.5}, {"id": 1, "scale": 1.0}]),
        json!(["a"]),
        json!([{"name": "b", "scale": -1.0}]),
    ];
    let prompt =
        "the quick brown fox jumps over the lazy dog, and again it jumps over it ".repeat(12);
    // Nothing is kept: each answer is computed from its own prompt.
    let alone = server(&["--keep", "0"]);
    let wanted: Vec<String> = wishes.iter().map(|lora| complete(&alone, &prompt, lora).0).collect();
    drop(alone);
    assert_eq!(wanted[0], wanted[4], "what the server was started with");
    let distinct: std::collections::BTreeSet<_> = wanted.iter().collect();
    assert_eq!(distinct.len(), 5, "{wanted:?}");
    let server = Arc::new(server(&["--keep", "8"]));
    for round in 0..2 {
        let asked: Vec<_> = wishes
            .iter()
            .cloned()
            .map(|lora| {
                let (server, prompt) = (server.clone(), prompt.clone());
                std::thread::spawn(move || complete(&server, &prompt, &lora))
            })
            .collect();
        for ((asked, wanted), lora) in asked.into_iter().zip(&wanted).zip(&wishes) {
            let (text, reused) = asked.join().unwrap();
            assert_eq!(&text, wanted, "round {round}, {lora}");
            // The second time there is a prefix of each one's own.
            assert!(round == 0 || reused > 0, "round {round}, {lora}: {reused} tokens were kept");
        }
    }
    // A prompt that other requests had, with adapters that none of them had.
    let (_, reused) = complete(&server, &prompt, &json!([{"id": 0, "scale": 0.125}]));
    assert_eq!(reused, 0, "another one's prefix");
    let listed: Value =
        serde_json::from_str(&get(&server.url("/lora-adapters")).unwrap().body).unwrap();
    let names: Vec<_> =
        listed.as_array().unwrap().iter().map(|a| (&a["id"], &a["path"], &a["scale"])).collect();
    assert_eq!(
        names,
        [(&json!(0), &json!("a"), &json!(1.0)), (&json!(1), &json!("b"), &json!(0.0))]
    );
    for (lora, word) in [
        (json!("c"), "there are \\\"a\\\", \\\"b\\\""),
        (json!([{"id": 2}]), "id 2"),
        (json!(1), "lora"),
    ] {
        let reply = server.post("/v1/completions", &json!({"prompt": "a", "lora": lora}));
        assert_eq!(reply.status, 400, "{}", reply.body);
        assert!(reply.body.contains(word), "{word}: {}", reply.body);
    }
    drop(server);
    std::fs::remove_file(model).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

/// Streams with different adapters go on with theirs when a worker is killed, from copies or from their tokens.
fn a_lost_worker_costs_no_stream_its_adapters() {
    for (arch, checkpoint) in [("llama", "off"), ("llama", "buddy"), ("granitehybrid", "buddy")] {
        let folder = folder(&format!("lost-{arch}-{checkpoint}"));
        let model = synth(arch, "tiny");
        let (a, b) = (adapter(&model, &folder, "a", 1), adapter(&model, &folder, "b", 2));
        let (a, b) = (a.to_str().unwrap(), format!("{}=0.5", b.display()));
        let args = ["-m", model.to_str().unwrap(), "--workers", "3", "--lora", a, "--lora", &b];
        let more = ["--checkpoint", checkpoint, "--checkpoint-every", "16", "--max-seqs", "4"];
        let server = Arc::new(Server::start(&[&args[..], &more].concat()));
        let body = |lora: &Value| {
            json!({
                "messages": [{"role": "user", "content": "Tell me about the day"}], "lora": lora,
                "max_tokens": 300, "temperature": 0, "ignore_eos": true,
            })
        };
        let wishes = [json!(null), json!([]), json!("b"), json!([{"id": 0, "scale": 0.5}])];
        let wanted: Vec<String> = wishes.iter().map(|lora| server.chat(&body(lora))).collect();
        let streams: Vec<_> = wishes
            .iter()
            .map(|lora| {
                let (server, body) = (server.clone(), body(lora));
                std::thread::spawn(move || server.chat_stream(&body))
            })
            .collect();
        let drawn = || server.metric("brigade_generated_tokens_total");
        let before = drawn();
        while drawn() < before + 200.0 {
            std::thread::sleep(Duration::from_millis(5));
        }
        signal("KILL", server.process.children()[1]);
        for ((stream, wanted), lora) in streams.into_iter().zip(&wanted).zip(&wishes) {
            let stream = stream.join().unwrap();
            assert!(stream.done && stream.error.is_none(), "{lora}: {:?}", stream.error);
            assert_eq!(&stream.text, wanted, "{arch}, {checkpoint}, {lora}");
        }
        assert!(
            server.metric("brigade_line_down_total") > 0.0
                || server.metric("brigade_tokens_replayed_total") > 0.0
        );
        println!(
            "{arch}, checkpoints {checkpoint}: {} tokens computed again",
            server.metric("brigade_tokens_replayed_total")
        );
        drop(server);
        std::fs::remove_file(model).unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }
}

fn a_run_goes_on_from_a_file_with_the_adapters_that_it_had() {
    let folder = folder("state");
    let model = synth("llama", "tiny");
    let a = adapter(&model, &folder, "a", 1);
    let (model_file, state) = (model.to_str().unwrap(), folder.join("state"));
    let (full, half) = (a.to_str().unwrap().to_owned(), format!("{}=0.5", a.display()));
    let state = state.to_str().unwrap();
    let prompt: Vec<u32> = (1..80).collect();
    let ids = |tokens: &[u32], n: &str, more: &[&str]| {
        let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
        let tokens = tokens.join(",");
        let args = ["run", "-m", model_file, "--tokens", &tokens, "-n", n, "--temp", "0", "--ids"];
        run(&[&args[..], more].concat())
    };
    let drawn = |output: &std::process::Output| -> Vec<u32> {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let whole = drawn(&ids(&prompt, "12", &["--lora", &full]));
    assert_ne!(whole, drawn(&ids(&prompt, "12", &[])));
    let first = drawn(&ids(&prompt, "6", &["--lora", &full, "--state-out", state]));
    let longer = [&prompt[..], &first].concat();
    let on = ["--workers", "3", "--lora", &full, "--state-in", state];
    assert_eq!([first, drawn(&ids(&longer, "6", &on))].concat(), whole);
    for other in [vec![], vec!["--lora", &half]] {
        let refused = ids(&longer, "6", &[&other[..], &["--state-in", state]].concat());
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(!refused.status.success() && said.contains("snapshot of something else"), "{said}");
    }
    std::fs::remove_file(model).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

fn an_older_worker_is_refused_with_what_to_do() {
    let folder = folder("older");
    let model = synth("llama", "tiny");
    let lora = adapter(&model, &folder, "a", 1);
    let worker =
        Running::start(&["worker", "--listen", "127.0.0.1:0"], brigade_worker::run::READY_PREFIX);
    let older = Older::before(worker.ready.trim().parse().unwrap());
    let (model_file, address) = (model.to_str().unwrap(), older.address.to_string());
    let args = ["run", "-m", model_file, "-p", "a", "-n", "2", "--worker", &address];
    ok(&args);
    let output = run(&[&args[..], &["--lora", lora.to_str().unwrap()]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("knows no adapters: upgrade it"), "{said}");
    std::fs::remove_file(model).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        workers_with_and_without_the_files_compute_the_same_bits_as_one_process,
        each_request_uses_its_own_adapters_and_no_other_ones_prefix,
        a_lost_worker_costs_no_stream_its_adapters,
        a_run_goes_on_from_a_file_with_the_adapters_that_it_had,
        an_older_worker_is_refused_with_what_to_do;
];

//! `/v1/embeddings`, `/v1/rerank` and `brigade embed` of an encoder: llama.cpp's vectors at any cut, and clear words for
//! what it cannot do.

use std::path::{Path, PathBuf};

use brigade_engine::heads::Classifier;
use brigade_gguf::Gguf;
use brigade_model_tests::golden::Encoders;
use brigade_tests::process::{Server, run};
use serde_json::{Value, json};

/// How far a component of a vector of length 1 may be from llama.cpp's.
const TOLERANCE: f64 = 1e-4;

const CUTS: [&[&str]; 3] = [&["--workers", "1"], &["--workers", "2"], &["--cuts", "1,2"]];

const TEXT: &str = "In the beginning God created the heaven and the earth.";

fn model(name: &str) -> PathBuf {
    Encoders::repository().models[name].synth.make()
}

fn server(model: &Path, more: &[&str]) -> Server {
    let model = ["-m", model.to_str().unwrap(), "--kv-type", "f32"];
    Server::start(&[&model, more].concat())
}

fn post(server: &Server, path: &str, body: &Value) -> Value {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

fn refused(server: &Server, path: &str, body: &Value) -> String {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 400, "{}", reply.body);
    reply.body
}

fn vectors(answer: &Value) -> Vec<Vec<f64>> {
    let data = answer["data"].as_array().unwrap().iter();
    data.map(|one| serde_json::from_value(one["embedding"].clone()).unwrap()).collect()
}

fn of_length_one(vector: &[f64]) -> Vec<f64> {
    let length = vector.iter().map(|v| v * v).sum::<f64>().sqrt();
    vector.iter().map(|v| v / length).collect()
}

fn vectors_are_those_of_llama_cpp_at_any_cut() {
    vectors_are_golden("bert", "cls");
    // Its vectors go through two matrices.
    vectors_are_golden("gemma-embedding-dense", "mean");
}

fn vectors_are_golden(name: &str, pooling_of_the_file: &str) {
    let golden = Encoders::repository();
    let (path, entry) = (model(name), &golden.models[name]);
    let answers = CUTS.map(|cut| {
        let server = server(&path, cut);
        let of = |pooling: &str| {
            let body = json!({ "input": golden.texts, "pooling": pooling });
            vectors(&post(&server, "/v1/embeddings", &body))
        };
        let as_the_file_says = vectors(&post(&server, "/v1/embeddings", &json!({ "input": TEXT })));
        let said = json!({ "input": TEXT, "pooling": pooling_of_the_file });
        assert_eq!(as_the_file_says, vectors(&post(&server, "/v1/embeddings", &said)));
        ["cls", "last", "mean"].map(of)
    });
    assert!(answers.iter().all(|answer| *answer == answers[0]), "the same bits at any cut");
    for (theirs, ours) in entry.pooled.values().zip(&answers[0]) {
        for (theirs, ours) in theirs.iter().zip(ours) {
            let pairs = of_length_one(theirs).into_iter().zip(ours);
            let apart = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            println!("{apart:.1e} apart at most");
            assert!(apart <= TOLERANCE, "{apart}");
        }
    }
}

fn documents_are_judged_by_the_head_at_any_cut() {
    const QUERY: &str = "who made it?";
    const DOCUMENTS: [&str; 3] = ["god made it.", "and the evening and the morning", "x"];
    let path = model("bert-rank");
    let (gguf, files) = Gguf::open_files(&path).unwrap();
    let head = Classifier::read(&gguf, true, &files).unwrap().unwrap();
    let body = json!({ "query": QUERY, "documents": DOCUMENTS });
    let answers = CUTS.map(|cut| {
        let server = server(&path, cut);
        let answer = post(&server, "/v1/rerank", &body);
        for result in answer["results"].as_array().unwrap() {
            let document = DOCUMENTS[result["index"].as_u64().unwrap() as usize];
            let tokens = |text: &str| -> Vec<u32> {
                let body = json!({ "content": text, "add_special": false });
                serde_json::from_value(post(&server, "/tokenize", &body)["tokens"].clone()).unwrap()
            };
            // [CLS] query [SEP] document [SEP]
            let (query, document) = (tokens(QUERY), tokens(document));
            let pair = [&[2], &query[..], &[3], &document[..], &[3]].concat();
            let body = json!({ "input": [pair], "normalize": false });
            let row = &vectors(&post(&server, "/v1/embeddings", &body))[0];
            let row: Vec<f32> = row.iter().map(|v| *v as f32).collect();
            let score = result["relevance_score"].as_f64().unwrap();
            assert!((score - f64::from(head.score(&row))).abs() < 1e-6, "{result}");
        }
        answer["results"].clone()
    });
    assert!(answers.iter().all(|answer| *answer == answers[0]), "the same at any cut");
    assert_eq!(answers[0].as_array().unwrap().len(), DOCUMENTS.len());
}

fn what_an_encoder_cannot_do_is_refused_in_words() {
    let server = server(&model("bert"), &["--workers", "2", "--ubatch", "96"]);
    let messages = json!([{ "role": "user", "content": "hello" }]);
    let chat = json!({ "messages": messages });
    let message = json!({ "messages": messages, "max_tokens": 4 });
    for (path, body) in [
        ("/v1/completions", json!({ "prompt": TEXT })),
        ("/v1/chat/completions", chat),
        ("/v1/messages", message),
    ] {
        let said = refused(&server, path, &body);
        assert!(said.contains("encoder") && said.contains("/v1/embeddings"), "{path}: {said}");
    }
    let of_length = |n: usize| json!({ "input": [vec![7; n]] });
    assert_eq!(vectors(&post(&server, "/v1/embeddings", &of_length(96))).len(), 1);
    let said = refused(&server, "/v1/embeddings", &of_length(97));
    for word in ["97", "96", "--ubatch", "context_length_exceeded"] {
        assert!(said.contains(word), "{said}");
    }
    let said = refused(&server, "/v1/embeddings", &of_length(513));
    assert!(said.contains("512") && said.contains("--ctx"), "{said}");
    let documents = json!({ "query": "a", "documents": ["b"] });
    let reply = server.post("/v1/rerank", &documents);
    assert_eq!(reply.status, 501, "{}", reply.body);
}

fn the_default_ubatch_holds_the_longest_text() {
    let server = server(&model("bert"), &["--workers", "2"]);
    let texts: Vec<Vec<u32>> = (0..20).map(|i| vec![9; 512 - i]).collect();
    let all = vectors(&post(&server, "/v1/embeddings", &json!({ "input": texts })));
    let last = vectors(&post(&server, "/v1/embeddings", &json!({ "input": [texts[19]] })));
    assert_eq!((all.len(), &all[19]), (20, &last[0]), "alone as beside others");
}

fn a_command_prints_the_same_vectors() {
    for (name, pooling) in [("bert", "cls"), ("gemma-embedding-dense", "mean")] {
        the_command_prints_what_the_server_says(name, pooling);
    }
    let out = run(&["run", "-m", model("bert").to_str().unwrap(), "-p", "hello", "-n", "2"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(!out.status.success() && said.contains("brigade embed"), "{said}");
}

fn the_command_prints_what_the_server_says(name: &str, pooling_of_the_file: &str) {
    let path = model(name);
    let file = std::env::temp_dir().join(format!("brigade-{}-{name}.txt", std::process::id()));
    let texts: Vec<String> = (0..40).map(|i| format!("{TEXT} {i}")).collect();
    std::fs::write(&file, texts.join("\n")).unwrap();
    let server = server(&path, &["--workers", "1"]);
    let wanted = vectors(&post(&server, "/v1/embeddings", &json!({ "input": texts })));
    let (path, name) = (path.to_str().unwrap(), file.to_str().unwrap());
    for cut in CUTS {
        let embed = ["embed", "-m", path, "-f", name];
        let out = run(&[&embed, cut].concat());
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let line = |line: &str| -> Vec<f64> {
            line.split(' ').map(|word| f64::from(word.parse::<f32>().unwrap())).collect()
        };
        let printed: Vec<_> = String::from_utf8(out.stdout).unwrap().lines().map(line).collect();
        assert!(printed == in_f32(&wanted), "{cut:?}");
        let out = run(&[&embed, cut, &["--json", "--pooling", pooling_of_the_file]].concat());
        let answer: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(in_f32(&vectors(&answer)), in_f32(&wanted), "{cut:?}");
    }
    std::fs::remove_file(file).unwrap();
}

/// Values as the server has them before they become JSON.
fn in_f32(vectors: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let narrow = |row: &Vec<f64>| row.iter().map(|v| f64::from(*v as f32)).collect();
    vectors.iter().map(narrow).collect()
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        vectors_are_those_of_llama_cpp_at_any_cut,
        documents_are_judged_by_the_head_at_any_cut,
        what_an_encoder_cannot_do_is_refused_in_words,
        the_default_ubatch_holds_the_longest_text,
        a_command_prints_the_same_vectors;
];

//! `/v1/rerank`: a model with a head that judges texts, at any cut; and the errors of other models.

use std::fs::File;
use std::path::PathBuf;

use brigade_gguf::{Gguf, GgufWriter};
use brigade_quant::GgmlType;
use brigade_tests::process::Server;
use serde_json::{Value, json};

/// How the template puts the two together.
const TEMPLATE: &str = "Does it answer?\n<Query>: {query}\n<Document>: {document}\nIt does:";

const QUERY: &str = "Who made the heaven?";

const DOCUMENTS: [&str; 5] =
    ["God made it.", "And the evening and the morning", "the {query}", "x", "God made it."];

/// Weights of the class `class` for value `i` of a row.
fn weight(class: usize, i: usize) -> f32 {
    ((i * 37 + class * 101) % 29) as f32 / 290.0 - 0.05
}

/// The golden qwen3 with a head of two classes, and a template if `with_template`; and how wide its rows are.
fn reranker(name: &str, with_template: bool) -> (PathBuf, usize) {
    let from = brigade_model_tests::places::of_tests("data/golden/qwen3.gguf");
    let model = Gguf::open(from).unwrap();
    let mut writer = GgufWriter::new();
    model.meta().iter().for_each(|(key, value)| writer.set(key, &value).unwrap());
    writer.set("qwen3.pooling_type", &4_u32).unwrap();
    writer.set("qwen3.classifier.output_labels", &["yes", "no"][..]).unwrap();
    if with_template {
        writer.set("tokenizer.chat_template.rerank", TEMPLATE).unwrap();
    }
    for tensor in model.tensors() {
        writer.tensor(&tensor.name, tensor.ty, tensor.dims()).unwrap();
    }
    let n_embd = model.meta().u32("qwen3.embedding_length").unwrap() as usize;
    writer.tensor("cls.output.weight", GgmlType::F32, &[n_embd, 2]).unwrap();
    let path = std::env::temp_dir().join(format!("brigade-{}-{name}.gguf", std::process::id()));
    let mut data = writer.start(File::create(&path).unwrap()).unwrap();
    for tensor in model.tensors() {
        data.write(model.data(tensor).unwrap()).unwrap();
    }
    for class in 0..2 {
        (0..n_embd).for_each(|i| data.write(&weight(class, i).to_le_bytes()).unwrap());
    }
    data.finish().unwrap();
    (path, n_embd)
}

fn post(server: &Server, path: &str, body: &Value) -> Value {
    let reply = server.post(path, body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    serde_json::from_str(&reply.body).unwrap()
}

/// The head's judgement of a text: the share of the first class.
fn wanted(server: &Server, text: &str, n_embd: usize) -> f64 {
    let tokens = post(server, "/tokenize", &json!({ "content": text, "parse_special": true }));
    let body = json!({ "input": tokens["tokens"], "pooling": "last", "normalize": false });
    let made = post(server, "/v1/embeddings", &body);
    let row: Vec<f64> = serde_json::from_value(made["data"][0]["embedding"].clone()).unwrap();
    assert_eq!(row.len(), n_embd);
    let logit = |class| -> f64 {
        row.iter().enumerate().map(|(i, v)| v * f64::from(weight(class, i))).sum()
    };
    1.0 / (1.0 + (logit(1) - logit(0)).exp())
}

fn documents_are_judged_the_same_at_any_cut() {
    let (path, n_embd) = reranker("rerank", true);
    let model = ["-m", path.to_str().unwrap()];
    let body = json!({ "query": QUERY, "documents": DOCUMENTS });
    let cuts: [&[&str]; 3] = [&["--workers", "1"], &["--workers", "2"], &["--cuts", "1"]];
    let answers = cuts.map(|cut| {
        let server = Server::start(&[&model, cut].concat());
        let answer = post(&server, "/v1/rerank", &body);
        if cut == cuts[0] {
            for result in answer["results"].as_array().unwrap() {
                let document = DOCUMENTS[result["index"].as_u64().unwrap() as usize];
                let text = TEMPLATE.replace("{query}", QUERY);
                let wanted = wanted(&server, &text.replace("{document}", document), n_embd);
                let found = result["relevance_score"].as_f64().unwrap();
                println!("{document:?}: {found:.7}, wanted {wanted:.7}");
                assert!((found - wanted).abs() < 1e-6, "{found} {wanted}");
            }
        }
        answer["results"].clone()
    });
    std::fs::remove_file(&path).unwrap();
    assert!(answers[0] == answers[1] && answers[0] == answers[2], "the same bits at any cut");
    let results = answers[0].as_array().unwrap();
    let scores: Vec<f64> = results.iter().map(|r| r["relevance_score"].as_f64().unwrap()).collect();
    assert_eq!(scores.len(), DOCUMENTS.len());
    assert!(scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    assert_ne!(scores[0], scores[4], "they are told apart");
    let of = |index: u64| {
        results.iter().find(|r| r["index"] == index).unwrap()["relevance_score"].clone()
    };
    assert_eq!(of(0), of(4), "equal documents are judged alike");
}

fn the_shapes_are_those_of_other_servers() {
    let (path, _) = reranker("shapes", false);
    let server = Server::start(&["-m", path.to_str().unwrap(), "--workers", "1"]);
    let documents = json!([{ "text": "God made it." }, "x", "and the light"]);
    let body =
        json!({ "query": QUERY, "documents": documents, "top_n": 2, "return_documents": true });
    let answer = post(&server, "/rerank", &body);
    assert_eq!(answer["object"], "list");
    assert_eq!(answer["results"].as_array().unwrap().len(), 2);
    assert!(answer["results"][0]["document"]["text"].is_string(), "{answer}");
    assert!(answer["usage"]["total_tokens"].as_u64().unwrap() > 10, "{answer}");
    let body = json!({ "query": QUERY, "texts": ["God made it.", "x"] });
    let plain = post(&server, "/v1/rerank", &body);
    assert_eq!(plain.as_array().unwrap().len(), 2);
    assert!(plain[0]["score"].is_number() && plain[0].get("text").is_none(), "{plain}");
    for (body, what) in [
        (json!({ "query": QUERY }), "documents"),
        (json!({ "query": QUERY, "documents": [] }), "documents is empty"),
        (json!({ "documents": ["a"] }), "query"),
        (json!({ "query": QUERY, "documents": [3] }), "documents"),
    ] {
        let reply = server.post("/v1/rerank", &body);
        assert!(reply.status == 400 && reply.body.contains(what), "{}", reply.body);
    }
    std::fs::remove_file(&path).unwrap();
}

fn a_model_that_judges_nothing_says_what_it_would_need() {
    let server = Server::start(&["--workers", "1"]);
    for path in ["/v1/rerank", "/rerank"] {
        let reply = server.post(path, &json!({ "query": "a", "documents": ["b", "c"] }));
        assert_eq!(reply.status, 501, "{}", reply.body);
        let error: Value = serde_json::from_str(&reply.body).unwrap();
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains("cls.output.weight") && message.contains("/v1/embeddings"));
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits:
        documents_are_judged_the_same_at_any_cut,
        the_shapes_are_those_of_other_servers,
        a_model_that_judges_nothing_says_what_it_would_need;
];

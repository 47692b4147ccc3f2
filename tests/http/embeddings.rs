//! `/v1/embeddings` of decoder models: the vectors of llama.cpp, wherever the layers are cut over workers.

use brigade_tests::process::Server;
use serde_json::{Value, json};

/// How far a component of a vector of length 1 may be from llama.cpp's.
const TOLERANCE: f64 = 1e-4;

fn vectors(server: &Server, tokens: &Value) -> Vec<Vec<f64>> {
    let vector = |pooling: &str| {
        let body = json!({ "input": tokens, "pooling": pooling });
        let reply = server.post("/v1/embeddings", &body);
        assert_eq!(reply.status, 200, "{}", reply.body);
        let json: Value = serde_json::from_str(&reply.body).unwrap();
        serde_json::from_value(json["data"][0]["embedding"].clone()).unwrap()
    };
    ["mean", "cls", "last"].map(vector).to_vec()
}

fn pooled_vectors_are_those_of_llama_cpp_at_any_cut() {
    let data = brigade_model_tests::places::of_tests("data");
    let golden: Value =
        serde_json::from_slice(&std::fs::read(data.join("embeddings.json")).unwrap()).unwrap();
    for (name, wanted) in golden["models"].as_object().unwrap() {
        let model = data.join(format!("golden/{name}.gguf"));
        let model = ["-m", model.to_str().unwrap(), "--kv-type", "f32"];
        // One worker, two with a cut in the middle, and two of which the first has one layer.
        let cuts: [&[&str]; 3] = [&["--workers", "1"], &["--workers", "2"], &["--cuts", "1"]];
        let of =
            |cut: &&[&str]| vectors(&Server::start(&[&model, *cut].concat()), &golden["tokens"]);
        let [one, two, uneven] = [of(&cuts[0]), of(&cuts[1]), of(&cuts[2])];
        assert!(one == two && one == uneven, "{name}: the same bits at any cut");
        for (pooling, ours) in ["mean", "cls", "last"].iter().zip(&one) {
            let theirs: Vec<f64> = serde_json::from_value(wanted[pooling].clone()).unwrap();
            assert_eq!(ours.len(), theirs.len());
            let apart = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            println!("{name}, {pooling}: {apart:.1e} apart at most");
            assert!(apart <= TOLERANCE, "{name}, {pooling}: {apart}");
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: pooled_vectors_are_those_of_llama_cpp_at_any_cut;
];

//! What a worker's process holds beside the weights and the states that it has to hold.

use std::time::Duration;

use brigade_gguf::Gguf;
use brigade_model_tests::golden::tokens;
use brigade_tests::process::{Server, own_memory, synth};
use brigade_tests::secure::wait_until;
use brigade_worker::backend::work_memory::WorkMemory;
use serde_json::json;

/// How long a heartbeat may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Rows of the largest ubatch.
const ROWS: u32 = 128;

/// Most bytes of a worker beside weights, states and the rows of a ubatch: what the program and its libraries have written,
/// threads, the model's header with its vocabulary, and what the allocator keeps.
const BESIDE: u64 = 24 << 20;

/// The bytes of tensors that were read for packing are gone when the stage is loaded, though the largest tensor alone is as
/// large as all that a worker may hold beside.
fn a_worker_holds_little_beside_weights_states_and_rows() {
    let path = synth("llama", "0.1b");
    let model = Gguf::open(&path).unwrap();
    let described = brigade_models::described(&model).unwrap();
    let rows = WorkMemory::of(&model, &described.spec).bytes(ROWS, false);
    let embedding = model.require(brigade_spec::TOKEN_EMBD).unwrap().nbytes;
    let largest = model.tensors().iter().map(|tensor| tensor.nbytes).max().unwrap();
    let ubatch = ROWS.to_string();
    let name = path.to_str().unwrap();
    let server = Server::start(&[
        "-m",
        name,
        "--served-model-name",
        "it",
        "--workers",
        "1",
        "--threads",
        "1",
        "--ubatch",
        &ubatch,
        "--ctx",
        "1024",
        "--max-seqs",
        "1",
        "--keep",
        "0",
    ]);
    let [worker] = server.process.children()[..] else { panic!("one worker") };
    // A heartbeat says it.
    let mut held = json!(null);
    wait_until("the worker says what it holds", PATIENCE, || {
        held = server.line_status("it")["nodes"][0]["bytes"].clone();
        held["weights"].as_u64() > Some(0)
    });
    let [weights, states] = ["weights", "states"].map(|what| held[what].as_u64().unwrap());
    let loaded = own_memory(worker).saturating_sub(weights + embedding);
    let body = json!({
        "prompt": tokens(600, 1), "max_tokens": 4, "temperature": 0, "ignore_eos": true,
    });
    let reply = server.post("/v1/completions", &body);
    assert_eq!(reply.status, 200, "{}", reply.body);
    let used = own_memory(worker).saturating_sub(weights + embedding);
    println!(
        "beside {weights} bytes of weights and {embedding} of the embedding: {loaded} when loaded, {used} behind a prompt, of these \
         {states} at most of states and {rows} at most of rows; the largest tensor has {largest}"
    );
    assert!(largest > BESIDE / 2, "the model is too small to show anything");
    assert!(loaded <= BESIDE, "{loaded} bytes beside the weights of a loaded stage");
    assert!(used <= BESIDE + states + rows, "{used} bytes beside its weights");
    std::fs::remove_file(path).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    waits: a_worker_holds_little_beside_weights_states_and_rows;
];

//! Loading, keeping and freeing of weights. A worker never loads other weights than those in the order, and nothing
//! for an epoch that is over. Where it cannot load, its error says what to do.

#![allow(clippy::await_holding_lock, reason = "a gate is kept shut while others work")]

use std::fs::File;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::model::{Model, write_model};
use crate::common::*;
use brigade_gguf::FileState;
use brigade_proto::control::*;
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::pipeline::{Want, row_result};
use brigade_worker::host::host_id;
use brigade_worker::run::WorkerError;

const N_LAYERS: u32 = 4;
const VALUES: usize = 10_000;
const TENSOR_BYTES: u64 = 4 * VALUES as u64;

fn whole() -> StageSpec {
    spec(0, 1, 0..N_LAYERS, None)
}

fn write(dir: &Path, addend: f32) -> Model {
    Model::open(&write_model(dir, "m.gguf", N_LAYERS, VALUES, addend))
}

/// Runs one token through a worker that holds the whole model.
async fn token_of(client: &mut Client, token: u32) -> u32 {
    let mut results = client.results().await.unwrap();
    let lane = client.open_lane(0).await.unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[token], Want::Sample)])).await;
    let frame = next(&mut results).await;
    match frame.rows[0].value.as_ref().unwrap() {
        row_result::Value::Sampled(sampled) => sampled.token,
        other => panic!("a token was asked for, {other:?} came"),
    }
}

/// An order as a coordinator on another machine sends it.
fn elsewhere(client: &Client, model: &Model) -> PrepareRequest {
    PrepareRequest { files: Vec::new(), ..client.order(model, whole(), true) }
}

async fn push_missing(client: &mut Client, model: &Model, reply: &PrepareReply) {
    let chunks = client.chunks(model, &reply.missing, 1 << 20);
    client.push(chunks).await.unwrap();
}

/// Waits until the fake backend is about to take a tensor.
async fn waiting(worker: &TestWorker) {
    let reached = async {
        while worker.backend.asked.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    soon(reached).await;
}

#[tokio::test]
async fn a_model_that_was_trained_further_is_not_answered_with_the_old_weights() {
    let dir = scratch();
    let worker = TestWorker::start(&dir);
    let old = write(&dir, 10.0);
    let mut client = Client::connect(&worker, "c", 1).await;
    client.prepare(client.order(&old, whole(), false)).await.unwrap();
    client.load().await.unwrap();
    assert_eq!(token_of(&mut client, 7).await, 107);
    // The coordinator has crashed. The one after it serves other weights under the same header, in the same
    // file, with the same size and, on purpose, the same modification time.
    let mtime = std::fs::metadata(dir.join("m.gguf")).unwrap().modified().unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let new = write(&dir, 11.0);
    File::options().write(true).open(dir.join("m.gguf")).unwrap().set_modified(mtime).unwrap();
    assert_eq!(old.header_blob(), new.header_blob());
    let mut client = Client::connect(&worker, "c", 2).await;
    let reply = client.prepare(client.order(&new, whole(), false)).await.unwrap();
    assert_eq!(reply.source(), WeightSource::SharedFile);
    client.load().await.unwrap();
    assert_eq!(token_of(&mut client, 7).await, 117);
}

#[tokio::test]
async fn resident_weights_serve_by_hash_and_by_nothing_less() {
    let (dir, other_dir) = (scratch(), scratch());
    let worker = TestWorker::start(&dir);
    let (old, new) = (write(&dir, 10.0), write(&other_dir, 11.0));
    let mut client = Client::connect(&worker, "c", 1).await;
    let reply = client.prepare(elsewhere(&client, &old)).await.unwrap();
    push_missing(&mut client, &old, &reply).await;
    client.load().await.unwrap();
    // Without hashes nothing is known of the weights asked for.
    let mut client = Client::connect(&worker, "c", 2).await;
    let unhashed = PrepareRequest { files: vec![], ..client.order(&old, whole(), false) };
    assert!(client.prepare(unhashed).await.unwrap().needs_hashes);
    let reply = client.prepare(elsewhere(&client, &old)).await.unwrap();
    assert_eq!(reply.source(), WeightSource::Resident);
    // The same header, other hashes.
    let mut client = Client::connect(&worker, "c", 3).await;
    let reply = client.prepare(elsewhere(&client, &new)).await.unwrap();
    assert_eq!((reply.source(), reply.missing.len()), (WeightSource::Cache, 4));
    push_missing(&mut client, &new, &reply).await;
    client.load().await.unwrap();
    assert_eq!(token_of(&mut client, 7).await, 117);
}

#[tokio::test]
async fn an_unload_ends_a_load_between_two_tensors_and_frees_it() {
    let dir = scratch();
    let (worker, model) = (TestWorker::start(&dir), write(&dir, 10.0));
    let mut client = Client::connect(&worker, "c", 1).await;
    client.prepare(client.order(&model, whole(), false)).await.unwrap();
    let gate = worker.backend.load_gate.clone();
    let held = gate.lock().unwrap();
    let mut loading = Client::connect(&worker, "c", 1).await;
    let load = tokio::spawn(async move { loading.load().await });
    let mut unloading = Client::connect(&worker, "c", 1).await;
    waiting(&worker).await;
    let unload = tokio::spawn(async move { unloading.unload().await });
    while client.health().await.phase() != Phase::Idle {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(held);
    let failure = soon(load).await.unwrap().unwrap_err();
    assert_eq!(failure.kind(), FailureKind::StaleEpoch, "{failure}");
    soon(unload).await.unwrap().unwrap();
    let asked = worker.backend.asked.load(Ordering::SeqCst);
    assert!(asked < N_LAYERS as usize, "{asked} tensors were read for a dead epoch");
    assert_eq!(client.health().await.weight_bytes, 0);
    // The worker is as good as new.
    let mut client = Client::connect(&worker, "d", 2).await;
    client.prepare(client.order(&model, whole(), false)).await.unwrap();
    client.load().await.unwrap();
    assert_eq!(token_of(&mut client, 7).await, 107);
}

#[tokio::test]
async fn forgetting_ends_what_loads_ahead_and_waits_for_it() {
    let dir = scratch();
    let (worker, model) = (TestWorker::start(&dir), write(&dir, 10.0));
    let next_worker = "127.0.0.1:9".parse().unwrap();
    let order = |client: &Client, layers: std::ops::Range<u32>| PrepareRequest {
        tensors: model.manifest(layers.clone(), false),
        ..client.order_of(&model, spec(0, 2, layers, Some(&next_worker)))
    };
    let mut client = Client::connect(&worker, "c", 1).await;
    client.prepare(order(&client, 0..1)).await.unwrap();
    client.load().await.unwrap();
    client.prepare_ahead(order(&client, 0..3)).await.unwrap();
    worker.backend.asked.store(0, Ordering::SeqCst);
    let gate = worker.backend.load_gate.clone();
    let held = gate.lock().unwrap();
    let mut loading = Client::connect(&worker, "c", 1).await;
    let load = tokio::spawn(async move { loading.load_ahead().await });
    waiting(&worker).await;
    let mut forgetting = Client::connect(&worker, "c", 1).await;
    let mut forget = tokio::spawn(async move { forgetting.forget_ahead().await });
    let early = tokio::time::timeout(Duration::from_millis(50), &mut forget).await;
    assert!(early.is_err(), "it answered while a tensor was being read");
    drop(held);
    soon(forget).await.unwrap().unwrap();
    soon(load).await.unwrap().unwrap_err();
    let asked = worker.backend.asked.load(Ordering::SeqCst);
    assert_eq!(asked, 1, "tensors were read for a stage that does not come");
    let again = client.load_ahead().await.unwrap_err();
    assert_eq!(again.kind(), FailureKind::WrongPhase, "{again}");
    // The stage that runs stays, and the next order is loaded as ever.
    client.prepare_ahead(order(&client, 0..3)).await.unwrap();
    client.load_ahead().await.unwrap();
}

#[tokio::test]
async fn a_new_epoch_does_not_wait_for_the_load_of_the_last_one() {
    let dir = scratch();
    let (worker, model) = (TestWorker::start(&dir), write(&dir, 10.0));
    let mut first = Client::connect(&worker, "c", 1).await;
    first.prepare(first.order(&model, whole(), false)).await.unwrap();
    let gate = worker.backend.load_gate.clone();
    let held = gate.lock().unwrap();
    let load = tokio::spawn(async move { first.load().await });
    waiting(&worker).await;
    let mut second = Client::connect(&worker, "c", 2).await;
    second.prepare(second.order(&model, whole(), false)).await.unwrap();
    drop(held);
    let facts = second.load().await.unwrap();
    assert_eq!(facts.source(), WeightSource::SharedFile);
    assert_eq!(soon(load).await.unwrap().unwrap_err().kind(), FailureKind::StaleEpoch);
    assert_eq!(worker.backend.built.load(Ordering::SeqCst), 1, "the first was given up");
    assert_eq!(token_of(&mut second, 7).await, 107);
}

#[tokio::test]
async fn a_worker_whose_stage_is_stuck_ends_with_the_reason() {
    let dir = scratch();
    let (mut worker, model) = (TestWorker::start(&dir), write(&dir, 10.0));
    let mut client = Client::connect(&worker, "c", 1).await;
    client.prepare(client.order(&model, whole(), false)).await.unwrap();
    client.load().await.unwrap();
    let _results = client.results().await.unwrap();
    let lane = client.open_lane(0).await.unwrap();
    let gate = worker.backend.gate.clone();
    let _stuck = gate.lock().unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[1], Want::Sample)])).await;
    while client.health().await.computing_us == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Heartbeats are good, and yet no line comes up with this stage.
    let mut next = Client::connect(&worker, "c", 2).await;
    next.prepare(next.order(&model, whole(), false)).await.unwrap();
    let load = tokio::spawn(async move { next.load().await });
    let error = soon(worker.ended()).await.unwrap_err();
    assert!(matches!(error, WorkerError::Stuck(_)), "{error}");
    assert!(error.to_string().contains("computing one ubatch for more than 10 s"), "{error}");
    drop(load);
}

#[tokio::test]
async fn a_cache_that_cannot_be_written_stops_only_what_needs_it() {
    let (dir, model_dir) = (scratch(), scratch());
    let model = write(&model_dir, 10.0);
    // A file in the directory's place stops root as well.
    let cache = dir.join("cache");
    std::fs::write(&cache, b"").unwrap();
    let worker = TestWorker::start(&cache);
    let mut client = Client::connect(&worker, "c", 1).await;
    let failure = client.prepare(elsewhere(&client, &model)).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Storage, "{failure}");
    for word in [cache.to_str().unwrap(), "--cache-dir"] {
        assert!(failure.reason.contains(word), "{word}: {failure}");
    }
    let mut client = Client::connect(&worker, "c", 2).await;
    client.prepare(client.order(&model, whole(), false)).await.unwrap();
    client.load().await.unwrap();
    assert_eq!(token_of(&mut client, 7).await, 107);
}

#[tokio::test]
async fn a_cache_that_is_too_small_is_named_with_the_numbers() {
    let dir = scratch();
    let model = write(&dir, 10.0);
    let worker = TestWorker::with(&dir, |raw| raw.cache_limit = Some("100K".into()));
    let mut client = Client::connect(&worker, "c", 1).await;
    let failure = client.prepare(elsewhere(&client, &model)).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Storage, "{failure}");
    let needed = (4 * TENSOR_BYTES + model.header.len() as u64).to_string();
    for word in [&needed, "102400", "--cache-limit", dir.to_str().unwrap()] {
        assert!(failure.reason.contains(word), "{word}: {failure}");
    }
}

#[tokio::test]
async fn a_file_that_is_cut_off_while_it_is_loaded_is_an_error_that_names_it() {
    let dir = scratch();
    let (worker, model) = (TestWorker::start(&dir), write(&dir, 10.0));
    let path = dir.join("m.gguf");
    let end = model.gguf.tensors()[2].offset;
    let mut client = Client::connect(&worker, "c", 1).await;
    client.prepare(client.order(&model, whole(), false)).await.unwrap();
    // A map of the file that this test has would end this process.
    drop(model);
    let failure = cut_while_loading(&worker, client, &path, end).await;
    assert!(failure.reason.contains("m.gguf"), "{failure}");
    assert!(failure.reason.contains("changed since it was opened"), "{failure}");
}

#[tokio::test]
async fn a_cached_blob_that_is_cut_off_while_it_is_loaded_is_an_error_and_is_sent_again() {
    let (dir, cache) = (scratch(), scratch());
    let (worker, model) = (TestWorker::start(&cache), write(&dir, 10.0));
    let mut client = Client::connect(&worker, "c", 1).await;
    let reply = client.prepare(elsewhere(&client, &model)).await.unwrap();
    push_missing(&mut client, &model, &reply).await;
    let hash = blake3::hash(model.bytes("blk.2.w")).to_hex();
    let blob = cache.join("blobs").join(hash.as_str());
    let failure = cut_while_loading(&worker, client, &blob, 100).await;
    assert!(failure.reason.contains(hash.as_str()), "{failure}");
    let mut client = Client::connect(&worker, "c", 2).await;
    let reply = client.prepare(elsewhere(&client, &model)).await.unwrap();
    assert_eq!(reply.missing.len(), 1, "{reply:?}");
    push_missing(&mut client, &model, &reply).await;
    client.load().await.unwrap();
    assert_eq!(token_of(&mut client, 7).await, 107);
}

/// Cuts off a file when the first tensor has been asked for; why loading failed.
async fn cut_while_loading(
    worker: &TestWorker,
    mut client: Client,
    path: &Path,
    len: u64,
) -> Failure {
    let gate = worker.backend.load_gate.clone();
    let held = gate.lock().unwrap();
    let load = tokio::spawn(async move { client.load().await });
    waiting(worker).await;
    File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    drop(held);
    let failure = soon(load).await.unwrap().unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Io, "{failure}");
    failure
}

#[tokio::test]
async fn the_answer_to_a_foreign_files_identity_says_nothing_of_its_content() {
    let dir = scratch();
    let (worker, model) = (TestWorker::start(&dir), write(&dir, 10.0));
    let secret = dir.join("secret");
    std::fs::write(&secret, "ROOT:hunter2:0:0\n".repeat(10)).unwrap();
    let state = FileState::of(&File::open(&secret).unwrap()).unwrap();
    let FileState { nbytes, mtime_ns, ctime_ns, inode, device } = state;
    let path = secret.to_str().unwrap().to_owned();
    let (host_id, mut client) = (host_id(), Client::connect(&worker, "c", 1).await);
    let hint = FileHint { path, nbytes, mtime_ns, inode, host_id, ctime_ns, device };
    let order = PrepareRequest { files: vec![hint], ..client.order(&model, whole(), true) };
    let answer = format!("{:?}", client.prepare(order).await);
    assert!(!answer.contains("ROOT"), "{answer}");
}

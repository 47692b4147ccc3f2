//! The control plane over loopback: sessions, memory checks, and sources of weights.

use crate::common::model::{Model, blob, write_model};
use crate::common::*;
use brigade_proto::control::*;
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::MAX_CONTROL_BYTES;
use brigade_proto::pipeline::{Want, row_result};
use brigade_proto::{OLDEST_WIRE_VERSION, SOFTWARE, WIRE_VERSION};

const N_LAYERS: u32 = 4;
/// f32 values of a tensor: 40 kB each, several chunks.
const VALUES: usize = 10_000;
const TENSOR_BYTES: u64 = 4 * VALUES as u64;
const CHUNK: usize = 16 << 10;

fn model(dir: &std::path::Path, addend: f32) -> Model {
    Model::open(&write_model(dir, &format!("m{addend}.gguf"), N_LAYERS, VALUES, addend))
}

fn whole() -> StageSpec {
    spec(0, 1, 0..N_LAYERS, None)
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

fn kind<T: std::fmt::Debug>(result: Result<T, Failure>) -> FailureKind {
    result.unwrap_err().kind()
}

/// An order that names no local file: everything must be pushed.
fn remote(client: &Client, model: &Model, spec: StageSpec) -> PrepareRequest {
    PrepareRequest { files: vec![], ..client.order(model, spec, true) }
}

#[tokio::test]
async fn the_handshake_exchanges_versions_and_capabilities() {
    let worker = TestWorker::start(&scratch());
    let mut client = Client::connect(&worker, "c", 1).await;
    let hello = HelloRequest {
        wire_version: WIRE_VERSION,
        software: SOFTWARE.into(),
        coordinator_id: "c".into(),
        newest_wire_version: 0,
    };
    let reply = client.control.hello(hello.clone()).await.unwrap().into_inner();
    let caps = reply.capabilities.unwrap();
    assert_eq!(
        (reply.wire_version, reply.newest_wire_version),
        (OLDEST_WIRE_VERSION, WIRE_VERSION)
    );
    assert_eq!(reply.last_epoch, 0);
    assert_eq!((caps.memory_limit, caps.architectures), (1 << 30, vec!["fake".to_owned()]));
    assert_eq!(caps.host_id, brigade_worker::host::host_id());
    let old = HelloRequest { wire_version: WIRE_VERSION + 1, ..hello };
    let failure = Failure::from_status(&client.control.hello(old).await.unwrap_err());
    assert_eq!(failure.kind(), FailureKind::Version);
    let theirs = format!("version {} of the wire", WIRE_VERSION + 1);
    assert!(failure.reason.contains(&theirs), "{failure}");
}

#[tokio::test]
async fn an_oversized_control_message_is_refused() {
    let worker = TestWorker::start(&scratch());
    let mut client = Client::connect(&worker, "c", 1).await;
    let coordinator_id = "x".repeat(MAX_CONTROL_BYTES + 1);
    let request = HealthRequest { epoch: 1, coordinator_id, ..HealthRequest::default() };
    let failure = Failure::from_status(&client.control.health(request).await.unwrap_err());
    assert_eq!(failure.kind(), FailureKind::BadMessage, "{failure}");
    assert_eq!(client.health().await.phase(), Phase::Idle);
}

#[tokio::test]
async fn a_shared_file_needs_neither_hashes_nor_pushes() {
    let dir = scratch();
    let (worker, model) = (TestWorker::start(&dir), model(&dir, 10.0));
    let mut client = Client::connect(&worker, "c", 1).await;
    let reply = client.prepare(client.order(&model, whole(), false)).await.unwrap();
    assert_eq!(reply.source(), WeightSource::SharedFile);
    assert!(reply.missing.is_empty() && !reply.needs_hashes);
    assert_eq!(reply.weight_bytes, 4 * TENSOR_BYTES);
    let facts = client.load().await.unwrap();
    assert_eq!(facts.metadata_hash, model.header_blob().blake3);
    let health = client.health().await;
    let held = [health.weight_bytes, health.state_bytes];
    assert_eq!(held, [facts.weight_bytes, facts.state_bytes]);
    assert!(health.memory_used > 0 && health.memory_peak >= health.memory_used, "{health:?}");
    assert_eq!(token_of(&mut client, 7).await, 107);
}

#[tokio::test]
async fn a_worker_without_the_file_gets_its_layers_and_keeps_them() {
    let (dir, cache) = (scratch(), scratch());
    let model = model(&dir, 10.0);
    let layers = spec(1, 2, 1..N_LAYERS, None);
    let pushed = {
        let worker = TestWorker::start(&cache);
        let mut client = Client::connect(&worker, "c", 1).await;
        let unhashed =
            PrepareRequest { files: vec![], ..client.order(&model, layers.clone(), false) };
        assert!(client.prepare(unhashed).await.unwrap().needs_hashes);
        let reply = client.prepare(remote(&client, &model, layers.clone())).await.unwrap();
        assert_eq!(reply.source(), WeightSource::Cache);
        assert_eq!(reply.missing.len(), 4);
        let chunks = client.chunks(&model, &reply.missing, CHUNK);
        let pushed = client.push(chunks).await.unwrap();
        assert_eq!(client.load().await.unwrap().source(), WeightSource::Cache);
        pushed
    };
    // Exactly its layers and the header.
    assert_eq!(pushed.received_bytes, 3 * TENSOR_BYTES + model.header.len() as u64);
    assert_eq!(pushed.completed_blobs, 4);
    // The second start sends none.
    let worker = TestWorker::start(&cache);
    let mut client = Client::connect(&worker, "c", 1).await;
    let reply = client.prepare(remote(&client, &model, layers)).await.unwrap();
    assert_eq!((reply.source(), reply.missing.len()), (WeightSource::Cache, 0));
    assert_eq!(reply.weight_bytes, 3 * TENSOR_BYTES);
    assert!(reply.state_bytes > 0);
    let facts = client.load().await.unwrap();
    assert_eq!((facts.input_width, facts.output_width), (8, 0));
}

#[tokio::test]
async fn a_push_that_was_cut_off_is_resumed() {
    let (dir, cache) = (scratch(), scratch());
    let model = model(&dir, 10.0);
    let worker = TestWorker::start(&cache);
    let mut client = Client::connect(&worker, "c", 1).await;
    let reply = client.prepare(remote(&client, &model, whole())).await.unwrap();
    let mut chunks = client.chunks(&model, &reply.missing, CHUNK);
    // The header, the first tensor's three chunks, and one of the second.
    chunks.truncate(5);
    client.push(chunks).await.unwrap();
    drop(worker);
    let worker = TestWorker::start(&cache);
    let mut client = Client::connect(&worker, "c", 1).await;
    let reply = client.prepare(remote(&client, &model, whole())).await.unwrap();
    let offsets: Vec<u64> = reply.missing.iter().map(|m| m.offset).collect();
    assert_eq!(offsets, [CHUNK as u64, 0, 0]);
    let chunks = client.chunks(&model, &reply.missing, CHUNK);
    let pushed = client.push(chunks).await.unwrap();
    assert_eq!(pushed.received_bytes, 3 * TENSOR_BYTES - CHUNK as u64);
    client.load().await.unwrap();
    assert_eq!(token_of(&mut client, 1).await, 101);
}

#[tokio::test]
async fn corrupt_gapped_and_unwanted_pushes_are_refused() {
    let (dir, cache) = (scratch(), scratch());
    let model = model(&dir, 10.0);
    let worker = TestWorker::start(&cache);
    let mut client = Client::connect(&worker, "c", 1).await;
    let missing = client.prepare(remote(&client, &model, whole())).await.unwrap().missing;
    let tensor = missing[1].blob.clone().unwrap();
    let wrong = client.chunk(tensor.clone(), 0, vec![7; TENSOR_BYTES as usize].into());
    let failure = client.push(vec![wrong.clone()]).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Corrupt, "{failure}");
    // Nothing of a refused push is kept.
    let again = client.prepare(remote(&client, &model, whole())).await.unwrap().missing;
    assert_eq!(again, missing);
    let gap = client.chunk(tensor.clone(), 5, vec![7; 10].into());
    assert_eq!(kind(client.push(vec![gap]).await), FailureKind::BadMessage);
    let long = client.chunk(tensor.clone(), 0, vec![7; TENSOR_BYTES as usize + 1].into());
    assert_eq!(kind(client.push(vec![long]).await), FailureKind::BadMessage);
    let other = client.chunk(blob(b"no one asked"), 0, b"no one asked".to_vec().into());
    assert_eq!(kind(client.push(vec![other]).await), FailureKind::BadMessage);
    let stale = TensorChunk { epoch: 9, ..wrong };
    assert_eq!(kind(client.push(vec![stale]).await), FailureKind::StaleEpoch);
    // A load of missing weights is refused, and the epoch is over.
    assert_eq!(kind(client.load().await), FailureKind::WrongPhase);
    assert_eq!(client.health().await.phase(), Phase::Failed);
}

#[tokio::test]
async fn a_copy_of_the_file_serves_only_with_the_same_content() {
    let (dir, cache) = (scratch(), scratch());
    let same = model(&dir, 10.0);
    let worker = TestWorker::start(&cache);
    // A coordinator on another machine, whose file has the same path.
    let elsewhere = |client: &Client, model: &Model, hashed| {
        let files = model.hints("another machine");
        PrepareRequest { files, ..client.order(model, whole(), hashed) }
    };
    let mut client = Client::connect(&worker, "c", 1).await;
    assert!(client.prepare(elsewhere(&client, &same, false)).await.unwrap().needs_hashes);
    let reply = client.prepare(elsewhere(&client, &same, true)).await.unwrap();
    assert_eq!((reply.source(), reply.missing.len()), (WeightSource::LocalFile, 0));
    assert_eq!(client.load().await.unwrap().source(), WeightSource::LocalFile);
    client.unload().await.unwrap();
    // Now the file here has other weights under the same header and size.
    let order = elsewhere(&client, &same, true);
    let path = write_model(&dir, "m10.gguf", N_LAYERS, VALUES, 11.0);
    let mut client = Client::connect(&worker, "c", 2).await;
    let order = PrepareRequest { epoch: 2, ..order };
    let reply = client.prepare(order).await.unwrap();
    assert_eq!(reply.source(), WeightSource::Cache, "{}", path.display());
    assert_eq!(reply.missing.len(), 5);
}

#[tokio::test]
async fn what_does_not_fit_is_refused_with_the_numbers_before_loading() {
    let dir = scratch();
    let model = model(&dir, 10.0);
    let worker = TestWorker::with(&dir, |raw| raw.memory = Some("200K".into()));
    let mut client = Client::connect(&worker, "c", 1).await;
    let failure = client.prepare(client.order(&model, whole(), false)).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::NoMemory);
    // 16 pages of state and four tensors against 200 KiB.
    for number in ["225536 bytes", "160000 of weights", "65536 of state", "may use 204800"] {
        assert!(failure.reason.contains(number), "{number}: {failure}");
    }
    assert_eq!(worker.backend.built.load(std::sync::atomic::Ordering::SeqCst), 0);
    // The refusal gives the worker back: another coordinator with less takes it at once.
    let mut other = Client::connect(&worker, "d", 2).await;
    let mut small = whole();
    small.n_blocks = 4;
    other.prepare(other.order(&model, small, false)).await.unwrap();
    other.load().await.unwrap();
}

#[tokio::test]
async fn a_busy_worker_names_its_holder_and_serves_the_next_after_unload() {
    let dir = scratch();
    let (tens, threes) = (model(&dir, 10.0), model(&dir, 3.0));
    let worker = TestWorker::start(&dir);
    let mut first = Client::connect(&worker, "first", 5).await;
    first.prepare(first.order(&tens, whole(), false)).await.unwrap();
    first.load().await.unwrap();
    let mut second = Client::connect(&worker, "second", 6).await;
    let failure = second.prepare(second.order(&threes, whole(), false)).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Busy);
    assert!(failure.reason.contains("coordinator first holds this worker"), "{failure}");
    assert_eq!(kind(second.unload().await), FailureKind::Busy);
    let fetch = FetchRequest { epoch: 6, coordinator_id: "second".into(), ..Default::default() };
    let status = second.control.fetch_tensors(fetch).await.unwrap_err();
    assert_eq!(Failure::from_status(&status).kind(), FailureKind::Busy, "{status}");
    first.unload().await.unwrap();
    let idle = first.health().await;
    assert_eq!((idle.phase(), idle.weight_bytes, idle.state_bytes), (Phase::Idle, 0, 0));
    // Calls of an old epoch are refused as stale.
    let failure = first.prepare(first.order(&threes, whole(), false)).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::StaleEpoch);
    assert!(failure.reason.contains("epoch 5 is over"), "{failure}");
    // Another coordinator and another model need no restart.
    second.prepare(second.order(&threes, whole(), false)).await.unwrap();
    second.load().await.unwrap();
    assert_eq!(token_of(&mut second, 7).await, 37);
}

#[tokio::test]
async fn a_new_epoch_with_the_same_stage_keeps_the_weights() {
    let dir = scratch();
    let (worker, model) = (TestWorker::start(&dir), model(&dir, 10.0));
    for (epoch, source) in [(1, WeightSource::SharedFile), (2, WeightSource::Resident)] {
        let mut client = Client::connect(&worker, "c", epoch).await;
        let reply = client.prepare(client.order(&model, whole(), false)).await.unwrap();
        assert_eq!(reply.source(), source);
        assert_eq!(client.load().await.unwrap().source(), source);
        assert_eq!(token_of(&mut client, 7).await, 107);
    }
    assert_eq!(worker.backend.built.load(std::sync::atomic::Ordering::SeqCst), 1);
    // Other limits need another stage.
    let mut client = Client::connect(&worker, "c", 3).await;
    let mut wider = whole();
    wider.max_rows = 128;
    client.prepare(client.order(&model, wider, false)).await.unwrap();
    assert_eq!(client.load().await.unwrap().source(), WeightSource::SharedFile);
    assert_eq!(worker.backend.built.load(std::sync::atomic::Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_manifest_that_is_not_the_stages_is_refused() {
    let dir = scratch();
    let (worker, model) = (TestWorker::start(&dir), model(&dir, 10.0));
    let mut client = Client::connect(&worker, "c", 1).await;
    let good = client.order(&model, whole(), true);
    let mut cases = vec![good.clone(), good.clone(), good.clone(), good.clone()];
    cases[0].tensors.pop();
    cases[1].spec = Some(spec(0, 1, 0..N_LAYERS - 1, None));
    cases[2].tensors[0].blob.as_mut().unwrap().nbytes += 1;
    cases[3].tensors[0].name = "blk.9.w".into();
    let reasons = ["lacks tensor blk.3.w", "does not use", "40000 bytes in the header", "blk.9.w"];
    for (epoch, (mut case, reason)) in (1..).zip(cases.into_iter().zip(reasons)) {
        case.epoch = epoch;
        let failure = client.prepare(case).await.unwrap_err();
        assert_eq!(failure.kind(), FailureKind::BadMessage, "{failure}");
        assert!(failure.reason.contains(reason), "{reason}: {failure}");
    }
    // A last stage that does not end with the model is found when it is built.
    let mut client = Client::connect(&worker, "c", 9).await;
    let cut = client.order(&model, spec(0, 1, 0..N_LAYERS - 1, None), false);
    client.prepare(cut).await.unwrap();
    let failure = client.load().await.unwrap_err();
    assert!(failure.reason.contains("are not those of stage 0 of 1"), "{failure}");
}

#[tokio::test]
async fn a_next_hop_beyond_this_machine_needs_permission() {
    let dir = scratch();
    let model = model(&dir, 10.0);
    let mut far = spec(0, 2, 0..2, None);
    far.next_hop = "192.0.2.1:5000".into();
    let worker = TestWorker::start(&dir);
    let mut client = Client::connect(&worker, "c", 1).await;
    let failure = client.prepare(client.order(&model, far.clone(), false)).await.unwrap_err();
    assert!(failure.reason.contains("--insecure-network"), "{failure}");
    let worker = TestWorker::with(&dir, |raw| raw.insecure_network = true);
    let mut client = Client::connect(&worker, "c", 1).await;
    client.prepare(client.order(&model, far, false)).await.unwrap();
}

#[tokio::test]
async fn a_draining_worker_takes_no_new_epoch() {
    let dir = scratch();
    let (worker, model) = (TestWorker::start(&dir), model(&dir, 10.0));
    let mut client = Client::connect(&worker, "c", 1).await;
    client.control.drain(DrainRequest {}).await.unwrap();
    assert!(client.health().await.draining);
    let result = client.prepare(client.order(&model, whole(), false)).await;
    assert_eq!(kind(result), FailureKind::Draining);
}

#[tokio::test]
async fn a_unix_socket_serves_too() {
    let dir = scratch();
    let path = dir.join("w.sock");
    let socket = format!("unix:{}", path.display());
    let model = model(&dir, 10.0);
    // A killed process leaves a socket on which nothing listens.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let worker = TestWorker::with(&dir, |raw| raw.listen = socket.clone());
    assert_eq!(worker.address.to_string(), socket);
    let mut client = Client::connect(&worker, "c", 1).await;
    client.prepare(client.order(&model, whole(), false)).await.unwrap();
    client.load().await.unwrap();
    assert_eq!(token_of(&mut client, 7).await, 107);
    // One that someone listens on is not taken.
    let taken = brigade_proto::net::Listener::bind(&worker.address, false).await.unwrap_err();
    assert!(taken.to_string().contains("cannot listen on unix:"), "{taken}");
}

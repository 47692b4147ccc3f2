//! The data plane over loopback: a line of workers, and everything that can be wrong with a frame or a peer.
//! Every failure must be answered with its kind and reason.

use std::sync::Arc;
use std::time::Duration;

use crate::common;
use crate::common::fake::{FAIL_TOKEN, FakeBackend, FakeDevice, NAN_TOKEN, PANIC_TOKEN, WIDTH};
use crate::common::model::{Model, write_model};
use crate::common::*;
use brigade_proto::control::{Phase, WireType};
use brigade_proto::failure::FailureKind;
use brigade_proto::frame::wire_row_bytes;
use brigade_proto::limits::MAX_FRAME_BYTES;
use brigade_proto::pipeline::{self as pb, Want, row_result};

const N_LAYERS: u32 = 6;
/// Layer i adds 10 * (i + 1).
const SUM: u32 = 210;

struct Setup {
    dir: std::path::PathBuf,
    model: Model,
}

fn setup() -> Setup {
    let dir = scratch();
    let model = Model::open(&write_model(&dir, "m.gguf", N_LAYERS, 16, 10.0));
    Setup { dir, model }
}

fn sampled(frame: &pb::ResultFrame) -> Vec<(u32, u32, u32)> {
    let token = |row: &pb::RowResult| match row.value.as_ref().unwrap() {
        row_result::Value::Sampled(s) => (row.slot, row.pos, s.token),
        other => panic!("a token was asked for, {other:?} came"),
    };
    frame.rows.iter().map(token).collect()
}

#[tokio::test]
async fn three_workers_pass_ubatches_down_and_results_back() {
    let Setup { dir, model } = setup();
    let workers = [0; 3].map(|_| TestWorker::start(&dir));
    let mut line = line(&workers.each_ref(), &model, N_LAYERS, 1).await;
    let mut results = line[2].results().await.unwrap();
    let lane = line[0].open_lane(0).await.unwrap();
    assert_eq!(lane.opened.stages_open, 3);
    let first = vec![part(0, 0, &[5, 6, 7], Want::Sample), part(1, 0, &[9], Want::Nothing)];
    lane.send(ubatch(0, vec![open(0), open(1)], first)).await;
    lane.send(ubatch(1, vec![close(1)], vec![])).await;
    lane.send(ubatch(2, vec![], vec![part(0, 3, &[8], Want::Sample)])).await;
    let frame = next(&mut results).await;
    assert_eq!((frame.id, frame.last), (0, true));
    assert_eq!(sampled(&frame), [(0, 2, 7 + SUM)]);
    assert_eq!(frame.timings.len(), 3);
    assert!(frame.timings[1].wire_bytes as usize > 4 * WIDTH * 4, "{:?}", frame.timings);
    let empty = next(&mut results).await;
    assert_eq!((empty.id, empty.last, empty.rows.len()), (1, true, 0));
    assert_eq!(sampled(&next(&mut results).await), [(0, 3, 8 + SUM)]);
    let health = line[1].health().await;
    assert_eq!((health.phase(), health.ubatches_done, health.queue_len), (Phase::Running, 3, 0));
    assert!(health.wire_bytes_in > 0 && health.wire_bytes_out > 0);
    // The coordinator closes the lane: all stages end well.
    let common::Lane { frames, mut events, .. } = lane;
    drop(frames);
    assert!(soon(events.message()).await.unwrap().is_none());
    assert!(soon(results.message()).await.unwrap().is_none());
    assert_eq!(line[0].health().await.phase(), Phase::Closed);
}

/// A worker whose stages compute on a device.
fn on_device(dir: &std::path::Path) -> (Arc<FakeDevice>, TestWorker) {
    let device = Arc::<FakeDevice>::default();
    let worker = TestWorker::fake(dir, FakeBackend::on_device(device.clone()), |_| ());
    (device, worker)
}

/// Waits until a device was told of so many ubatches.
async fn begun(device: &FakeDevice, n: usize) {
    soon(async {
        while device.begun() < n {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_ubatch_is_begun_while_the_one_before_it_computes() {
    let Setup { dir, model } = setup();
    let (device, worker) = on_device(&dir);
    let mut line = line(&[&worker], &model, N_LAYERS, 1).await;
    let mut results = line[0].results().await.unwrap();
    let lane = line[0].open_lane(0).await.unwrap();
    for slot in 0..3 {
        let parts = vec![part(slot, 0, &[5 + slot], Want::Sample)];
        lane.send(ubatch(slot.into(), vec![open(slot)], parts)).await;
    }
    begun(&device, 2).await;
    device.compute(1);
    // The first result comes, and the device has the next two.
    assert_eq!(sampled(&next(&mut results).await), [(0, 0, 5 + SUM)]);
    begun(&device, 3).await;
    device.compute(2);
    assert_eq!(sampled(&next(&mut results).await), [(1, 0, 6 + SUM)]);
    // A ubatch without a successor is finished as well.
    let last = next(&mut results).await;
    assert_eq!(sampled(&last), [(2, 0, 7 + SUM)]);
    let health = line[0].health().await;
    assert_eq!((health.ubatches_done, health.queue_len, health.computing_us), (3, 0, 0));
}

#[tokio::test]
async fn a_ubatch_waits_for_the_draw_of_its_sequence() {
    let Setup { dir, model } = setup();
    let (device, worker) = on_device(&dir);
    let mut line = line(&[&worker], &model, N_LAYERS, 1).await;
    let mut results = line[0].results().await.unwrap();
    let lane = line[0].open_lane(0).await.unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[5], Want::Sample)])).await;
    // It was given up: its slot is another's at once.
    let again = vec![part(0, 0, &[6], Want::Sample)];
    lane.send(ubatch(1, vec![close(0), open(0)], again)).await;
    begun(&device, 1).await;
    // Long enough for a second one to be begun, were it allowed.
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(device.begun(), 1);
    device.compute(1);
    assert_eq!(sampled(&next(&mut results).await), [(0, 0, 5 + SUM)]);
    begun(&device, 2).await;
    device.compute(1);
    assert_eq!(sampled(&next(&mut results).await), [(0, 0, 6 + SUM)]);
}

#[tokio::test]
async fn what_came_before_a_failing_ubatch_is_sent() {
    let Setup { dir, model } = setup();
    let (device, worker) = on_device(&dir);
    let mut line = line(&[&worker], &model, N_LAYERS, 1).await;
    let mut results = line[0].results().await.unwrap();
    let mut lane = line[0].open_lane(0).await.unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[5], Want::Sample)])).await;
    lane.send(ubatch(1, vec![open(1)], vec![part(1, 0, &[FAIL_TOKEN], Want::Sample)])).await;
    begun(&device, 1).await;
    device.compute(1);
    assert_eq!(sampled(&next(&mut results).await), [(0, 0, 5 + SUM)]);
    let failure = lane.failure().await;
    assert_eq!(failure.kind(), FailureKind::Compute);
    assert!(failure.reason.contains("ubatch 1"), "{failure}");
    assert_eq!(line[0].health().await.computing_us, 0, "a lane that failed computes nothing");
}

#[tokio::test]
async fn each_logits_row_is_a_frame() {
    let Setup { dir, model } = setup();
    let worker = TestWorker::start(&dir);
    let mut line = line(&[&worker], &model, N_LAYERS, 1).await;
    let mut results = line[0].results().await.unwrap();
    let lane = line[0].open_lane(0).await.unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[1, 2], Want::Logits)])).await;
    for (pos, token) in [(0, 1), (1, 2)] {
        let frame = next(&mut results).await;
        assert!(!frame.last && frame.rows.len() == 1 && frame.rows[0].pos == pos);
        let Some(row_result::Value::Logits(raw)) = &frame.rows[0].value else { panic!("logits") };
        let expected = [(token + SUM) as f32; WIDTH].map(f32::to_le_bytes).concat();
        assert_eq!(raw[..], expected[..]);
    }
    let last = next(&mut results).await;
    assert!(last.last && last.rows.is_empty() && last.timings.len() == 1);
}

#[tokio::test]
async fn tokens_and_logits_come_in_the_order_of_the_parts() {
    let Setup { dir, model } = setup();
    let worker = TestWorker::start(&dir);
    let mut line = line(&[&worker], &model, N_LAYERS, 1).await;
    let mut results = line[0].results().await.unwrap();
    let lane = line[0].open_lane(0).await.unwrap();
    let parts = vec![
        part(0, 0, &[1], Want::Sample),
        part(1, 0, &[2, 3], Want::Logits),
        part(2, 0, &[NAN_TOKEN], Want::Sample),
        part(3, 0, &[4], Want::Sample),
    ];
    lane.send(ubatch(0, (0..4).map(open).collect(), parts)).await;
    let mut places = Vec::new();
    loop {
        let frame = next(&mut results).await;
        places.push(frame.rows.iter().map(|row| (row.slot, row.pos)).collect::<Vec<_>>());
        assert_eq!(frame.timings.len(), usize::from(frame.last));
        if frame.last {
            break;
        }
    }
    assert_eq!(places, [vec![(0, 0)], vec![(1, 0)], vec![(1, 1)], vec![(2, 0), (3, 0)]]);
}

#[tokio::test]
async fn smaller_wire_types_carry_what_they_can() {
    let Setup { dir, model } = setup();
    // Two bytes a value, or a block of 34 bytes for up to 32 values.
    let row = |wire_type| wire_row_bytes(wire_type, WIDTH).unwrap() as u32;
    for wire_type in [WireType::F16, WireType::Bf16, WireType::Q80] {
        let workers = [0; 2].map(|_| TestWorker::start(&dir));
        let mut clients = Vec::new();
        for (stage, layers) in [(0, 0..3), (1, 3..6)] {
            let next = workers.get(stage as usize + 1).map(|w| &w.address);
            let mut spec = spec(stage, 2, layers, next);
            spec.wire_type = wire_type.into();
            let mut client = Client::connect(&workers[stage as usize], "c", 1).await;
            client.prepare(client.order(&model, spec, false)).await.unwrap();
            client.load().await.unwrap();
            clients.push(client);
        }
        let mut results = clients[1].results().await.unwrap();
        let lane = clients[0].open_lane(0).await.unwrap();
        lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[4], Want::Sample)])).await;
        let frame = next(&mut results).await;
        // 4 + SUM is exact in f16 and bf16, and nearly so beside equal values.
        let [(0, 0, token)] = sampled(&frame)[..] else { panic!("{frame:?}") };
        let off = u32::from(wire_type == WireType::Q80);
        assert!(token.abs_diff(4 + SUM) <= off, "{wire_type:?}: {token}");
        // Few more around them.
        let bytes = frame.timings[1].wire_bytes;
        assert!((row(wire_type)..row(wire_type) + 64).contains(&bytes), "{:?}", frame.timings);
    }
}

/// A worker that is the last stage of two; the test is its upstream.
async fn last_of_two(
    setup: &Setup,
) -> (TestWorker, Client, tonic::Streaming<pb::ResultFrame>, Lane) {
    let worker = TestWorker::start(&setup.dir);
    let mut client = Client::connect(&worker, "c", 3).await;
    let spec = spec(1, 2, 3..N_LAYERS, None);
    client.prepare(client.order(&setup.model, spec, false)).await.unwrap();
    client.load().await.unwrap();
    let results = client.results().await.unwrap();
    let lane = client.open_lane(1).await.unwrap();
    (worker, client, results, lane)
}

fn good() -> pb::Ubatch {
    let parts = vec![part(0, 0, &[5, 6], Want::Sample)];
    pb::Ubatch { boundary: Some(boundary(2, &[1.0; 2 * WIDTH])), ..ubatch(0, vec![open(0)], parts) }
}

#[tokio::test]
async fn every_bad_frame_is_an_answer_that_names_the_field() {
    type Change = fn(&mut pb::Ubatch);
    let cases: [(&str, Change); 16] = [
        ("ubatch.epoch is 2, expected 3", |u| u.epoch = 2),
        ("ubatch.lane is 1, expected 0", |u| u.lane = 1),
        ("ubatch.id is 5, expected 0", |u| u.id = 5),
        ("boundary is missing", |u| u.boundary = None),
        ("boundary.n_rows is 3, expected 2", |u| u.boundary.as_mut().unwrap().n_rows = 3),
        ("boundary.width is 9, expected 8", |u| u.boundary.as_mut().unwrap().width = 9),
        ("boundary.dtype", |u| u.boundary.as_mut().unwrap().dtype = 77),
        ("boundary.data bytes is 63, expected 64", |u| {
            u.boundary.as_mut().unwrap().data.truncate(63);
        }),
        ("boundary.data bytes is 64, expected 32", |u| {
            u.boundary.as_mut().unwrap().dtype = WireType::F16.into();
        }),
        ("rows is 65, the limit is 64", |u| u.parts[0].tokens = vec![1; 65]),
        ("part.tokens is missing", |u| u.parts[0].tokens.clear()),
        ("part.tokens is 1000, the limit is 999", |u| u.parts[0].tokens[1] = 1000),
        ("part.slot is 4, the limit is 3", |u| u.parts[0].slot = 4),
        ("a slot appears in two parts", |u| {
            u.parts = vec![part(0, 0, &[1], Want::Nothing), part(0, 1, &[1], Want::Nothing)];
        }),
        ("part.pos + tokens is 513, the limit is 512", |u| u.parts[0].pos = 511),
        ("block id is 16, the limit is 15", |u| {
            let op = pb::OpenOp { blocks: vec![16], ..pb::OpenOp::default() };
            u.ops[0].op = Some(pb::seq_op::Op::Open(op));
        }),
    ];
    let setup = setup();
    for (reason, change) in cases {
        let (_worker, mut client, mut results, mut lane) = last_of_two(&setup).await;
        let mut frame = pb::Ubatch { epoch: lane.epoch, ..good() };
        change(&mut frame);
        lane.send_raw(frame).await;
        let failure = lane.failure().await;
        assert_eq!((failure.kind(), failure.stage), (FailureKind::BadMessage, 1), "{failure}");
        assert!(failure.reason.contains(reason), "{reason}: {failure}");
        // The coordinator hears the same on the result stream, and then its end.
        assert_eq!(common::reason(&mut results).await, failure);
        assert!(soon(results.message()).await.unwrap().is_none());
        let health = client.health().await;
        assert_eq!(health.phase(), Phase::Failed);
        assert!(health.failure.contains(reason));
    }
}

#[tokio::test]
async fn a_good_frame_passes_where_the_bad_ones_fail() {
    let setup = setup();
    let (_worker, _client, mut results, lane) = last_of_two(&setup).await;
    lane.send(good()).await;
    // The second half of the layers adds 40 + 50 + 60.
    assert_eq!(sampled(&next(&mut results).await), [(0, 1, 151)]);
}

#[tokio::test]
async fn an_oversized_frame_is_refused_by_its_length() {
    let setup = setup();
    let (_worker, mut client, _results, mut lane) = last_of_two(&setup).await;
    let mut frame = good();
    frame.boundary.as_mut().unwrap().data = vec![0; MAX_FRAME_BYTES].into();
    lane.send(frame).await;
    let failure = lane.failure().await;
    assert_eq!(failure.kind(), FailureKind::BadMessage, "{failure}");
    assert!(failure.reason.contains("a message of"), "{failure}");
    assert_eq!(client.health().await.phase(), Phase::Failed);
}

#[tokio::test]
async fn a_failing_stage_reports_and_can_be_used_in_the_next_epoch() {
    let Setup { dir, model } = setup();
    let workers = [0; 2].map(|_| TestWorker::start(&dir));
    let mut clients = line(&workers.each_ref(), &model, N_LAYERS, 1).await;
    let mut results = clients[1].results().await.unwrap();
    let mut lane = clients[0].open_lane(0).await.unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[FAIL_TOKEN], Want::Sample)])).await;
    let failure = lane.failure().await;
    assert_eq!((failure.kind(), failure.stage), (FailureKind::Compute, 0));
    assert!(
        failure.reason.contains("ubatch 0: request req-0: the fake stage fails on purpose"),
        "{failure}"
    );
    assert_eq!(reason(&mut results).await, failure);
    // The same weights serve the next epoch, with no sequence left open.
    let mut clients = line(&workers.each_ref(), &model, N_LAYERS, 2).await;
    let mut results = clients[1].results().await.unwrap();
    let lane = clients[0].open_lane(0).await.unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[3], Want::Sample)])).await;
    assert_eq!(sampled(&next(&mut results).await), [(0, 0, 3 + SUM)]);
    let built = |w: &TestWorker| w.backend.built.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(workers.each_ref().map(built), [1, 1]);
}

#[tokio::test]
async fn a_row_without_a_token_comes_back_as_its_reason_and_the_lane_goes_on() {
    let Setup { dir, model } = setup();
    let worker = TestWorker::start(&dir);
    let mut clients = line(&[&worker], &model, N_LAYERS, 1).await;
    let mut results = clients[0].results().await.unwrap();
    let lane = clients[0].open_lane(0).await.unwrap();
    let parts = vec![part(0, 0, &[3], Want::Sample), part(1, 0, &[NAN_TOKEN], Want::Sample)];
    lane.send(ubatch(0, vec![open(0), open(1)], parts)).await;
    let frame = next(&mut results).await;
    assert!(frame.last && frame.rows.len() == 2, "{frame:?}");
    assert!(matches!(&frame.rows[0].value, Some(row_result::Value::Sampled(_))), "{frame:?}");
    let Some(row_result::Value::Failed(why)) = &frame.rows[1].value else { panic!("{frame:?}") };
    assert_eq!((frame.rows[1].slot, why.as_str()), (1, "the fake row is NaN"));
    lane.send(ubatch(1, vec![close(1)], vec![part(0, 1, &[3], Want::Sample)])).await;
    assert_eq!(sampled(&next(&mut results).await), [(0, 1, 3 + SUM)]);
}

#[tokio::test]
async fn a_panicking_stage_is_a_reason_and_is_built_anew() {
    let Setup { dir, model } = setup();
    let worker = TestWorker::start(&dir);
    let mut clients = line(&[&worker], &model, N_LAYERS, 1).await;
    let _results = clients[0].results().await.unwrap();
    let mut lane = clients[0].open_lane(0).await.unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[PANIC_TOKEN], Want::Sample)])).await;
    let failure = lane.failure().await;
    assert_eq!(failure.kind(), FailureKind::Compute);
    assert!(failure.reason.contains("panicked: the fake stage panics"), "{failure}");
    let mut clients = line(&[&worker], &model, N_LAYERS, 2).await;
    let mut results = clients[0].results().await.unwrap();
    let lane = clients[0].open_lane(0).await.unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[3], Want::Sample)])).await;
    assert_eq!(sampled(&next(&mut results).await), [(0, 0, 3 + SUM)]);
    assert_eq!(worker.backend.built.load(std::sync::atomic::Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_vanished_stage_is_reported_from_both_sides() {
    let Setup { dir, model } = setup();
    let mut workers = [0; 3].map(|_| TestWorker::start(&dir));
    let mut clients = line(&workers.each_ref(), &model, N_LAYERS, 1).await;
    let mut results = clients[2].results().await.unwrap();
    let mut lane = clients[0].open_lane(0).await.unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[3], Want::Sample)])).await;
    next(&mut results).await;
    workers[1].vanish();
    let failure = lane.failure().await;
    assert_eq!(failure.kind(), FailureKind::PeerLost, "{failure}");
    assert!(failure.reason.contains("stage 0: lost stage 1"), "{failure}");
    assert!(!failure.reason.contains("h2 protocol error"), "{failure}");
    let failure = reason(&mut results).await;
    assert_eq!(failure.kind(), FailureKind::PeerLost, "{failure}");
    assert!(failure.reason.contains("stage 2: lost stage 1"), "{failure}");
    assert!(!failure.reason.contains("h2 protocol error"), "{failure}");
}

#[tokio::test]
async fn a_worker_that_leaves_says_so() {
    let Setup { dir, model } = setup();
    let mut workers = [0; 2].map(|_| TestWorker::start(&dir));
    let mut clients = line(&workers.each_ref(), &model, N_LAYERS, 1).await;
    let _results = clients[1].results().await.unwrap();
    let mut lane = clients[0].open_lane(0).await.unwrap();
    workers[1].stop();
    let failure = lane.failure().await;
    assert_eq!(failure.kind(), FailureKind::Draining, "{failure}");
    assert!(failure.reason.contains("shutting down"), "{failure}");
}

#[tokio::test]
async fn a_coordinator_that_goes_ends_the_lane_on_every_stage() {
    let Setup { dir, model } = setup();
    let workers = [0; 2].map(|_| TestWorker::start(&dir));
    let mut clients = line(&workers.each_ref(), &model, N_LAYERS, 1).await;
    let mut results = clients[1].results().await.unwrap();
    // A coordinator whose connection to stage 0 breaks: its runtime is a process of its own.
    let doomed = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let address = workers[0].address.clone();
    let lane =
        doomed.spawn(async move { Client::at(&address, "c", 1).await.open_lane(0).await.unwrap() });
    let lane = lane.await.unwrap();
    doomed.shutdown_background();
    let failure = reason(&mut results).await;
    assert_eq!(failure.kind(), FailureKind::PeerLost, "{failure}");
    assert!(failure.reason.contains("lost the coordinator"), "{failure}");
    for client in &mut clients {
        assert_eq!(client.health().await.phase(), Phase::Failed);
    }
    drop(lane);
}

#[tokio::test]
async fn results_that_no_one_takes_end_the_lane() {
    let Setup { dir, model } = setup();
    let workers = [0; 2].map(|_| TestWorker::start(&dir));
    let mut clients = line(&workers.each_ref(), &model, N_LAYERS, 1).await;
    let results = clients[1].results().await.unwrap();
    let mut lane = clients[0].open_lane(0).await.unwrap();
    drop(results);
    let failure = lane.failure().await;
    assert_eq!((failure.kind(), failure.stage), (FailureKind::PeerLost, 1), "{failure}");
    assert!(failure.reason.contains("no longer takes results"), "{failure}");
}

#[tokio::test]
async fn lanes_out_of_order_are_refused() {
    let Setup { dir, model } = setup();
    let worker = TestWorker::start(&dir);
    let mut client = Client::connect(&worker, "c", 1).await;
    let refused =
        |result: Result<Lane, _>| result.err().map(|f: brigade_proto::failure::Failure| f.kind());
    // Before Prepare, no one holds the worker.
    assert_eq!(refused(client.open_lane(0).await), Some(FailureKind::Busy));
    let whole = spec(0, 1, 0..N_LAYERS, None);
    client.prepare(client.order(&model, whole, false)).await.unwrap();
    assert_eq!(refused(client.open_lane(0).await), Some(FailureKind::WrongPhase));
    client.load().await.unwrap();
    // Results first.
    assert_eq!(refused(client.open_lane(0).await), Some(FailureKind::WrongPhase));
    let _results = client.results().await.unwrap();
    assert_eq!(refused(client.open_lane(1).await), Some(FailureKind::BadMessage));
    let mut stale = Client::connect(&worker, "c", 9).await;
    assert_eq!(refused(stale.open_lane(0).await), Some(FailureKind::StaleEpoch));
    let _lane = client.open_lane(0).await.unwrap();
    assert_eq!(refused(client.open_lane(0).await), Some(FailureKind::WrongPhase));
}

#[tokio::test]
async fn a_hung_stage_still_answers_heartbeats_and_a_new_epoch_ends_its_lane() {
    let Setup { dir, model } = setup();
    let worker = TestWorker::start(&dir);
    let mut clients = line(&[&worker], &model, N_LAYERS, 1).await;
    let _results = clients[0].results().await.unwrap();
    let mut lane = clients[0].open_lane(0).await.unwrap();
    let gate = worker.backend.gate.clone();
    let (held, release) = (std::sync::mpsc::channel(), std::sync::mpsc::channel::<()>());
    let holder = std::thread::spawn(move || {
        let _kept = gate.lock().unwrap();
        held.0.send(()).unwrap();
        let _ = release.1.recv();
    });
    held.1.recv().unwrap();
    for id in 0..3 {
        let ops = if id == 0 { vec![open(0)] } else { vec![] };
        lane.send(ubatch(id, ops, vec![part(0, id as u32, &[1], Want::Nothing)])).await;
    }
    let health = loop {
        let health = clients[0].health().await;
        if health.computing_us > 0 && health.queue_len == 2 {
            break health;
        }
    };
    assert_eq!(health.ubatches_done, 0);
    let mut newer = Client::connect(&worker, "c", 2).await;
    newer.prepare(newer.order(&model, spec(0, 1, 0..N_LAYERS, None), false)).await.unwrap();
    let failure = lane.failure().await;
    assert_eq!(failure.kind(), FailureKind::StaleEpoch);
    assert!(failure.reason.contains("epoch 1 is over: epoch 2 has begun"), "{failure}");
    drop(release.0);
    holder.join().unwrap();
    newer.load().await.unwrap();
    // Frames that were queued in the old epoch were dropped.
    let mut results = newer.results().await.unwrap();
    let lane = newer.open_lane(0).await.unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 0, &[2], Want::Sample)])).await;
    assert_eq!(sampled(&next(&mut results).await), [(0, 0, 2 + SUM)]);
}

//! Loading ahead: a worker whose stage computes loads missing weights of its next stage, which then reads nothing.

use crate::common::fake::FakeBackend;
use crate::common::model::{Model, write_model};
use crate::common::real::{Line, MORE, manifest, real_workers, synth_model};
use crate::common::*;
use brigade_proto::control::*;
use brigade_proto::failure::FailureKind;

/// The order of a stage of its own, with all four layers.
fn whole(client: &Client, model: &Model, remote: bool) -> PrepareRequest {
    let spec = spec(0, 1, 0..4, None);
    let tensors = manifest(model, &spec);
    let mut order = PrepareRequest { tensors, ..client.order_of(model, spec) };
    if remote {
        order.files.clear();
    }
    order
}

/// Tokens that a line draws behind a prompt.
async fn drawn(line: &mut Line) -> Vec<Vec<u8>> {
    line.open_slot(0).await;
    line.prefill(0).await;
    let rows = line.go_on(0).await;
    assert_eq!(rows.len(), MORE.len());
    rows.iter().map(|row| format!("{row:?}").into_bytes()).collect()
}

/// A line of two workers that has read a prompt.
struct Begun {
    model: Model,
    workers: Vec<TestWorker>,
    line: Line,
    /// Calls of the first worker.
    control: Client,
}

impl Begun {
    async fn new() -> Self {
        let model = Model::open(&synth_model(&scratch(), "Q8_0"));
        let workers = real_workers(2);
        let mut line = Line::open(&workers, &model, &[0, 2, 4], 1).await;
        line.open_slot(0).await;
        line.prefill(0).await;
        let control = Client::connect(&workers[0], "c", 1).await;
        Self { model, workers, line, control }
    }
}

async fn gets_the_whole(remote: bool) {
    let Begun { model, workers, mut line, mut control } = Begun::new().await;
    let reply = control.prepare_ahead(whole(&control, &model, remote)).await.unwrap();
    assert_eq!(reply.missing.is_empty(), !remote);
    if remote {
        let early = control.load_ahead().await.unwrap_err();
        assert_eq!(early.kind(), FailureKind::WrongPhase, "{early}");
        let chunks = control.chunks(&model, &reply.missing, 100_000);
        control.push(chunks).await.unwrap();
    }
    let ahead = control.load_ahead().await.unwrap();
    assert!(ahead.read_bytes > 0 && ahead.weight_bytes > 0, "{ahead:?}");
    // The line that runs has noticed nothing.
    let beside = line.go_on(0).await;
    drop(line);
    let mut next = Client::connect(&workers[0], "c", 2).await;
    let reply = next.prepare(whole(&next, &model, remote)).await.unwrap();
    assert!(reply.missing.is_empty(), "{reply:?}");
    let facts = next.load().await.unwrap();
    assert_eq!((facts.read_bytes, facts.kept_layers), (0, 4), "{facts:?}");
    let got = drawn(&mut Line::over(vec![next]).await).await;
    let expected = drawn(&mut Line::open(&real_workers(1), &model, &[0, 4], 1).await).await;
    assert_eq!(got, expected);
    let beside: Vec<Vec<u8>> = beside.iter().map(|row| format!("{row:?}").into_bytes()).collect();
    assert_eq!(beside, expected);
}

#[tokio::test]
async fn the_next_stage_reads_nothing_of_a_file() {
    gets_the_whole(false).await;
}

#[tokio::test]
async fn the_next_stage_is_sent_nothing() {
    gets_the_whole(true).await;
}

#[tokio::test]
async fn what_a_line_that_does_not_come_loaded_is_forgotten() {
    let Begun { model, workers, mut line, mut control } = Begun::new().await;
    control.prepare_ahead(whole(&control, &model, false)).await.unwrap();
    control.load_ahead().await.unwrap();
    let mut later = Client::connect(&workers[0], "c", 2).await;
    assert_eq!(later.forget_ahead().await.unwrap_err().kind(), FailureKind::StaleEpoch);
    control.forget_ahead().await.unwrap();
    let forgotten = control.load_ahead().await.unwrap_err();
    assert_eq!(forgotten.kind(), FailureKind::WrongPhase, "{forgotten}");
    // The line that runs has noticed nothing.
    assert_eq!(line.go_on(0).await.len(), MORE.len());
    // Once more, while nothing is there to forget.
    control.forget_ahead().await.unwrap();
    drop(line);
    later.prepare(whole(&later, &model, false)).await.unwrap();
    let facts = later.load().await.unwrap();
    assert!(facts.read_bytes > 0, "{facts:?}");
}

#[tokio::test]
async fn only_a_line_that_is_up_loads_ahead_and_only_in_its_epoch() {
    let dir = scratch();
    let model = Model::open(&synth_model(&dir, "Q8_0"));
    let worker = TestWorker::real(&dir, |_| ());
    let mut client = Client::connect(&worker, "c", 1).await;
    let nobodys = client.prepare_ahead(whole(&client, &model, false)).await.unwrap_err();
    assert_eq!(nobodys.kind(), FailureKind::Busy, "{nobodys}");
    client.prepare(whole(&client, &model, false)).await.unwrap();
    let early = client.prepare_ahead(whole(&client, &model, false)).await.unwrap_err();
    assert_eq!(early.kind(), FailureKind::WrongPhase, "{early}");
    client.load().await.unwrap();
    let unprepared = client.load_ahead().await.unwrap_err();
    assert_eq!(unprepared.kind(), FailureKind::WrongPhase, "{unprepared}");
    let mut later = Client::connect(&worker, "c", 2).await;
    let stale = later.prepare_ahead(whole(&later, &model, false)).await.unwrap_err();
    assert_eq!(stale.kind(), FailureKind::StaleEpoch, "{stale}");
    let mut other = Client::connect(&worker, "d", 1).await;
    let busy = other.prepare_ahead(whole(&other, &model, false)).await.unwrap_err();
    assert_eq!(busy.kind(), FailureKind::Busy, "{busy}");
    // All that it wants is there already.
    client.prepare_ahead(whole(&client, &model, false)).await.unwrap();
    assert_eq!(client.load_ahead().await.unwrap().read_bytes, 0);
}

#[tokio::test]
async fn without_room_beside_the_stage_the_next_line_loads_as_before() {
    let dir = scratch();
    let model = Model::open(&synth_model(&dir, "Q8_0"));
    let halves = |next| [spec(0, 2, 0..2, Some(next)), spec(1, 2, 2..4, None)];
    let order = |client: &Client, half: &StageSpec| {
        let tensors = manifest(&model, half);
        PrepareRequest { tensors, ..client.order_of(&model, half.clone()) }
    };
    let roomy = TestWorker::real(&dir, |_| ());
    let [first, second] = halves(&roomy.address);
    let mut memory = 0;
    for (epoch, half) in [(1, &first), (2, &second)] {
        let mut client = Client::connect(&roomy, "c", epoch).await;
        let needs = client.prepare(order(&client, half)).await.unwrap();
        memory = memory.max(needs.weight_bytes + needs.state_bytes);
    }
    // Enough for each half, and not for both.
    let worker = TestWorker::real(&scratch(), |raw| raw.memory = Some(memory.to_string()));
    let mut client = Client::connect(&worker, "c", 1).await;
    client.prepare(order(&client, &first)).await.unwrap();
    client.load().await.unwrap();
    client.prepare_ahead(order(&client, &second)).await.unwrap();
    let refused = client.load_ahead().await.unwrap_err();
    assert_eq!(refused.kind(), FailureKind::NoMemory, "{refused}");
    assert!(refused.reason.contains("beside the running stage"), "{refused}");
    let mut next = Client::connect(&worker, "c", 2).await;
    next.prepare(order(&next, &second)).await.unwrap();
    let facts = next.load().await.unwrap();
    assert!(facts.read_bytes > 0 && facts.kept_layers == 0, "{facts:?}");
}

#[tokio::test]
async fn what_lies_with_the_host_is_granted_beside_the_running_stage_too() {
    const LAYER: u64 = 1 << 20;
    let model = Model::open(&write_model(&scratch(), "m.gguf", 8, 100, 1.0));
    let order = |client: &Client, layers: std::ops::Range<u32>| {
        let tensors = model.manifest(layers.clone(), false);
        // None of these is the end of its line.
        let (stage, next) = (u32::from(layers.start > 0), "127.0.0.1:9".parse().unwrap());
        PrepareRequest { tensors, ..client.order_of(&model, spec(stage, 3, layers, Some(&next))) }
    };
    // Layers that go on with those that are there, and others; and the layers that the host has room for.
    for (ahead, room, fits) in [(0..4, 4, true), (4..6, 4, true), (4..6, 3, false)] {
        let backend = FakeBackend::beside_host(LAYER);
        let worker = TestWorker::fake(&scratch(), backend, |raw| {
            raw.host_memory = Some((room * LAYER).to_string());
        });
        let mut client = Client::connect(&worker, "c", 1).await;
        client.prepare(order(&client, 0..2)).await.unwrap();
        client.load().await.unwrap();
        client.prepare_ahead(order(&client, ahead.clone())).await.unwrap();
        match client.load_ahead().await {
            Ok(_) => assert!(fits, "layers {ahead:?}, room for {room}"),
            Err(refused) => {
                assert!(!fits, "layers {ahead:?}, room for {room}: {refused}");
                assert_eq!(refused.kind(), FailureKind::NoMemory, "{refused}");
                assert!(refused.reason.contains("experts in the host's memory"), "{refused}");
            }
        }
    }
}

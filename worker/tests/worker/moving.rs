//! Layers move to another worker with the states of their sequences: a line parts, the worker that has no layers any more
//! retires, and the next line fetches from it.

use std::time::Duration;

use crate::common::model::Model;
use crate::common::real::{Line, PROMPT, manifest, real_line, real_workers, synth_model};
use crate::common::*;
use brigade_engine::batch::TokenMark;
use brigade_proto::control::{DrainRequest, Phase, PrepareRequest, RetireRequest};
use brigade_proto::copies::copies_client::CopiesClient;
use brigade_proto::copies::{CopySource, FindRequest, Found, PutBackRequest, SettleRequest};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::net::dial;
use brigade_proto::pipeline as pb;
use tonic::Status;

const NAME: [u8; 16] = [7; 16];

/// Both cuts: two stages, and all on the first worker.
const BEFORE: [u32; 3] = [0, 2, 4];
const AFTER: [u32; 2] = [0, 4];

fn op(op: pb::seq_op::Op) -> pb::SeqOp {
    pb::SeqOp { op: Some(op) }
}

fn name(slot: u32) -> pb::SeqOp {
    op(pb::seq_op::Op::Name(pb::NameOp { slot, name: NAME.to_vec().into() }))
}

fn tokens() -> Vec<u32> {
    PROMPT.collect()
}

impl Line {
    /// A sequence behind its prompt, on a line whose stages were told to keep its state.
    async fn parted(workers: &[TestWorker], model: &Model) -> Self {
        let mut line = Self::open(workers, model, &BEFORE, 1).await;
        line.open_slot(0).await;
        line.prefill(0).await;
        line.run(vec![name(0)], vec![]).await;
        let mark = TokenMark::of(&tokens()).0.to_vec().into();
        let len = PROMPT.len() as u32;
        let leaves = pb::CheckpointOp { slot: 0, len, mark, parting: true, plane: None };
        line.run(vec![op(pb::seq_op::Op::Checkpoint(leaves))], vec![]).await;
        line
    }
}

async fn retire(worker: &TestWorker, epoch: u64) -> Result<(), Failure> {
    let mut client = Client::connect(worker, "c", epoch).await;
    let request = RetireRequest { epoch, coordinator_id: "c".into(), ..Default::default() };
    let reply = soon(client.control.retire(request)).await;
    reply.map(drop).map_err(|s| Failure::from_status(&s))
}

async fn copies(worker: &TestWorker) -> CopiesClient<brigade_proto::net::Connection> {
    CopiesClient::new(dial(&worker.address, false).await.unwrap())
}

async fn find(worker: &TestWorker, epoch: u64) -> Result<Vec<Found>, Failure> {
    let names = NAME.to_vec().into();
    let request = FindRequest { epoch, coordinator_id: "c".into(), names };
    let reply = soon(copies(worker).await.find(request)).await;
    reply.map(|reply| reply.into_inner().found).map_err(|s: Status| Failure::from_status(&s))
}

fn is_left(found: &[Found], layers: std::ops::Range<u32>) -> bool {
    let [found] = found else { return false };
    found.parting
        && (found.layer_begin..found.layer_end) == layers
        && found.positions == [PROMPT.len() as u32]
}

#[tokio::test]
async fn a_sequence_goes_on_from_its_old_stage_and_from_a_worker_beside_the_line() {
    let model = Model::open(&synth_model(&scratch(), "Q8_0"));
    let alone = real_workers(1);
    let mut undisturbed = Line::open(&alone, &model, &AFTER, 1).await;
    undisturbed.open_slot(0).await;
    undisturbed.prefill(0).await;
    let expected = undisturbed.go_on(0).await;

    let workers = real_workers(2);
    let _before = Line::parted(&workers, &model).await;
    let (clients, _) = real_line(&workers[..1], &model, &AFTER, 2, false).await;
    retire(&workers[1], 2).await.unwrap();
    let mut line = Line::over(clients).await;
    assert!(is_left(&find(&workers[0], 2).await.unwrap(), 0..2));
    assert!(is_left(&find(&workers[1], 2).await.unwrap(), 2..4));
    line.open_slot(1).await;
    line.run(vec![name(1)], vec![]).await;
    let sources = [(String::new(), 0..2), (workers[1].address.to_string(), 2..4)];
    let sources = sources.map(|(address, layers)| {
        let (layer_begin, layer_end) = (layers.start, layers.end);
        CopySource { address, layer_begin, layer_end, ..CopySource::default() }
    });
    let put = PutBackRequest {
        prefix: None,
        unchanged_since: None,
        epoch: 2,
        coordinator_id: "c".into(),
        slot: 1,
        name: NAME.to_vec().into(),
        len: PROMPT.len() as u32,
        tokens: tokens().iter().flat_map(|token| token.to_le_bytes()).collect::<Vec<u8>>().into(),
        sources: sources.into(),
        kept_len: 0,
    };
    let put = soon(copies(&workers[0]).await.put_back(put)).await.unwrap();
    assert!(put.into_inner().fetched_bytes > 0);
    assert!(line.go_on(1).await == expected, "bit for bit");

    // All sequences have their states: nothing stays.
    let settle = SettleRequest { epoch: 2, coordinator_id: "c".into() };
    soon(copies(&workers[0]).await.settle(settle)).await.unwrap();
    assert_eq!(find(&workers[0], 2).await.unwrap(), []);
    let mut beside = Client::connect(&workers[1], "c", 2).await;
    let health = beside.health().await;
    assert_eq!((health.weight_bytes, health.state_bytes), (0, 0), "its stage is gone");
    beside.unload().await.unwrap();
    assert_eq!(beside.health().await.phase(), Phase::Idle);
    assert_eq!(find(&workers[1], 2).await.unwrap_err().kind(), FailureKind::Busy);
}

#[tokio::test]
async fn a_state_that_has_no_room_beside_the_next_stage_does_not_stay() {
    let model = Model::open(&synth_model(&scratch(), "Q8_0"));
    let roomy = real_workers(1);
    let mut client = Client::connect(&roomy[0], "c", 1).await;
    let spec = spec(0, 1, 0..4, None);
    let tensors = manifest(&model, &spec);
    let order = PrepareRequest { tensors, ..client.order_of(&model, spec) };
    let needs = client.prepare(order).await.unwrap();
    let exact = (needs.weight_bytes + needs.state_bytes).to_string();
    let tight = TestWorker::real(&scratch(), |raw| {
        raw.threads = Some(1);
        raw.memory = Some(exact);
    });
    let workers = [vec![tight], real_workers(1)].into_iter().flatten().collect::<Vec<_>>();
    let _before = Line::parted(&workers, &model).await;
    let (clients, _) = real_line(&workers[..1], &model, &AFTER, 2, false).await;
    retire(&workers[1], 2).await.unwrap();
    let _line = Line::over(clients).await;
    assert_eq!(find(&workers[0], 2).await.unwrap(), []);
    assert!(is_left(&find(&workers[1], 2).await.unwrap(), 2..4));
}

#[tokio::test]
async fn a_worker_that_drains_stays_until_its_states_have_moved() {
    let model = Model::open(&synth_model(&scratch(), "Q8_0"));
    let workers = real_workers(2);
    let _before = Line::parted(&workers, &model).await;
    let mut control = Client::connect(&workers[1], "c", 1).await.control;
    let mut drained = tokio::spawn(async move { control.drain(DrainRequest {}).await });
    real_line(&workers[..1], &model, &AFTER, 2, false).await;
    assert_eq!(retire(&workers[1], 1).await.unwrap_err().kind(), FailureKind::StaleEpoch);
    retire(&workers[1], 2).await.unwrap();
    let waits = tokio::time::timeout(Duration::from_millis(300), &mut drained).await;
    assert!(waits.is_err(), "it left with states that somebody may fetch");
    Client::connect(&workers[1], "c", 2).await.unload().await.unwrap();
    soon(drained).await.unwrap().unwrap();
}

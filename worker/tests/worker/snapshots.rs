//! A sequence's state is moved from one line into another, at any cut. The bits behind it are the same.

use crate::common;
use crate::common::model::Model;
use crate::common::real::{Line, real_line, real_workers, synth_model};
use crate::common::*;
use brigade_engine::state::{merge_snapshots, select_layers};
use brigade_proto::control::{
    RestoreHead, RestoreRequest, SnapshotRequest, WeightSource, restore_request,
};
use brigade_proto::failure::{Failure, FailureKind};
use brigade_proto::limits::{CHUNK_BYTES, SNAPSHOT_FRAME_BYTES};
use tonic::Status;

impl Line {
    async fn snapshots(&mut self, slot: u32) -> Vec<Vec<u8>> {
        let mut parts = Vec::new();
        for client in &mut self.clients {
            parts.push(client.snapshot(slot).await.unwrap());
        }
        parts
    }
}

impl Client {
    async fn snapshot(&mut self, slot: u32) -> Result<Vec<u8>, Failure> {
        let (epoch, coordinator_id) = (self.epoch, self.id.clone());
        let from = |s: Status| Failure::from_status(&s);
        let request = SnapshotRequest { epoch, coordinator_id, slot };
        let mut chunks = soon(self.control.snapshot(request)).await.map_err(from)?.into_inner();
        let (mut bytes, mut total) = (Vec::new(), 0);
        while let Some(chunk) = soon(chunks.message()).await.map_err(from)? {
            assert!(chunk.data.len() <= CHUNK_BYTES);
            total = chunk.total_bytes;
            bytes.extend_from_slice(&chunk.data);
        }
        assert_eq!(bytes.len() as u64, total);
        Ok(bytes)
    }

    async fn restore(&mut self, slot: u32, bytes: &[u8]) -> Result<(), Failure> {
        self.restore_as(self.head(slot, bytes.len() as u64), bytes).await
    }

    fn head(&self, slot: u32, total_bytes: u64) -> RestoreHead {
        let (epoch, coordinator_id) = (self.epoch, self.id.clone());
        RestoreHead { epoch, coordinator_id, slot, total_bytes }
    }

    async fn restore_as(&mut self, head: RestoreHead, bytes: &[u8]) -> Result<(), Failure> {
        // Small chunks, so that there are several.
        let data = bytes.chunks(10_000).map(|c| restore_request::Part::Data(c.to_vec().into()));
        let parts: Vec<_> = std::iter::once(restore_request::Part::Head(head))
            .chain(data)
            .map(|part| RestoreRequest { part: Some(part) })
            .collect();
        let reply = soon(self.control.restore(tokio_stream::iter(parts))).await;
        reply.map(|_| ()).map_err(|s| Failure::from_status(&s))
    }
}

/// A line of one stage with an open slot.
async fn one_stage(worker: &[TestWorker]) -> Line {
    let dir = scratch();
    let model = Model::open(&synth_model(&dir, "q8_0"));
    let mut line = Line::open(worker, &model, &[0, 4], 1).await;
    line.open_slot(0).await;
    line.prefill(0).await;
    line
}

#[tokio::test]
async fn a_state_has_what_a_sequence_can_have() {
    let workers = real_workers(1);
    let mut line = one_stage(&workers).await;
    // More than one sequence's, though less than the whole stage's and what frames it.
    let client = &mut line.clients[0];
    let total = client.health().await.state_bytes + SNAPSHOT_FRAME_BYTES;
    let failure = client.restore_as(client.head(0, total), &[1; 100]).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::BadMessage, "{failure}");
    assert!(failure.reason.contains("a sequence has"), "{failure}");
    let whole = client.snapshot(0).await.unwrap();
    client.restore(0, &whole).await.unwrap();
}

#[tokio::test]
async fn a_state_that_memory_has_no_room_for_is_refused_with_what_to_do() {
    let (dir, roomy) = (scratch(), real_workers(1));
    let model = Model::open(&synth_model(&dir, "q8_0"));
    let mut client = Client::connect(&roomy[0], "c", 1).await;
    let spec = spec(0, 1, 0..4, None);
    let tensors = common::real::manifest(&model, &spec);
    let order =
        brigade_proto::control::PrepareRequest { tensors, ..client.order_of(&model, spec.clone()) };
    let needs = client.prepare(order).await.unwrap();
    let exact = (needs.weight_bytes + needs.state_bytes).to_string();
    let tight = vec![TestWorker::real(&scratch(), |raw| {
        raw.threads = Some(1);
        raw.memory = Some(exact);
    })];
    let mut line = one_stage(&tight).await;
    let client = &mut line.clients[0];
    // The largest that a sequence may have.
    let failure = client.restore_as(client.head(0, 1 << 40), &[1; 100]).await.unwrap_err();
    let (_, words) = failure.reason.split_once("a sequence has ").unwrap();
    let limit: u64 = words.split(' ').next().unwrap().parse().unwrap();
    let failure = client.restore_as(client.head(0, limit), &[1; 100]).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::NoMemory, "{failure}");
    assert!(failure.reason.contains("--memory leaves"), "{failure}");
}

#[tokio::test]
async fn states_are_read_and_written_one_at_a_time() {
    let workers = real_workers(1);
    let mut line = one_stage(&workers).await;
    let client = &mut line.clients[0];
    let whole = client.snapshot(0).await.unwrap();
    let (parts, stream) = tokio::sync::mpsc::channel(4);
    let head = RestoreRequest {
        part: Some(restore_request::Part::Head(client.head(0, whole.len() as u64))),
    };
    parts.send(head).await.unwrap();
    let mut control = client.control.clone();
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let restoring = tokio::spawn(async move { control.restore(stream).await });
    // Its turn lasts until it ends; a heartbeat passes.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    client.health().await;
    let second = tokio::time::timeout(std::time::Duration::from_millis(500), client.snapshot(0));
    assert!(second.await.is_err(), "two states at a time");
    parts
        .send(RestoreRequest { part: Some(restore_request::Part::Data(whole.clone().into())) })
        .await
        .unwrap();
    drop(parts);
    restoring.await.unwrap().unwrap();
    assert_eq!(client.snapshot(0).await.unwrap(), whole);
}

#[tokio::test]
async fn a_sequence_goes_on_at_another_cut_with_the_same_bits() {
    let dir = scratch();
    let model = Model::open(&synth_model(&dir, "Q8_0"));
    let two = real_workers(2);
    let mut line = Line::open(&two, &model, &[0, 2, 4], 1).await;
    line.open_slot(0).await;
    line.prefill(0).await;
    let whole = merge_snapshots(&line.snapshots(0).await).unwrap();
    let expected = line.go_on(0).await;
    // Other workers, another cut, another slot, beside another sequence.
    let three = real_workers(3);
    let cuts = [0, 1, 3, 4];
    let mut other = Line::open(&three, &model, &cuts, 1).await;
    other.open_slot(0).await;
    other.open_slot(1).await;
    other.prefill(0).await;
    for (stage, client) in other.clients.iter_mut().enumerate() {
        let layers = cuts[stage] as usize..cuts[stage + 1] as usize;
        client.restore(1, &select_layers(&whole, layers).unwrap()).await.unwrap();
    }
    assert_eq!(merge_snapshots(&other.snapshots(1).await).unwrap(), whole, "no cut shows");
    assert!(other.go_on(1).await == expected, "bit for bit");
    assert!(other.go_on(0).await == expected, "and the neighbour is as it was");
}

#[tokio::test]
async fn what_does_not_fit_is_refused_and_changes_nothing() {
    let dir = scratch();
    let (model, foreign) = ("Q8_0", "Q4_K_M");
    let [model, foreign] = [model, foreign].map(|quant| Model::open(&synth_model(&dir, quant)));
    let workers = real_workers(2);
    let mut line = Line::open(&workers, &foreign, &[0, 2, 4], 1).await;
    line.open_slot(0).await;
    line.prefill(0).await;
    let of_another_model = line.snapshots(0).await;
    let mut line = Line::open(&workers, &model, &[0, 2, 4], 2).await;
    line.open_slot(0).await;
    line.prefill(0).await;
    let good = line.snapshots(0).await;
    let mut damaged = good[0].clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let mut without_tokens = good[1].clone();
    without_tokens.truncate(without_tokens.len() - 1);
    let [first, last] = line.clients.as_mut_slice() else { panic!("two stages") };
    let kept = first.head(0, good[0].len() as u64);
    let stale = RestoreHead { epoch: 1, ..kept.clone() };
    let huge = RestoreHead { total_bytes: 1 << 40, ..kept.clone() };
    let short = RestoreHead { total_bytes: kept.total_bytes + 1, ..kept.clone() };
    let long = RestoreHead { total_bytes: kept.total_bytes - 1, ..kept.clone() };
    let stranger = RestoreHead { coordinator_id: "d".into(), ..kept };
    let cases = [
        (first.restore(0, &damaged).await, FailureKind::Corrupt, "hash"),
        (first.restore(0, &of_another_model[0]).await, FailureKind::Unsupported, "wanted llama"),
        (first.restore(0, &good[1]).await, FailureKind::Unsupported, "no state of layer 0"),
        (last.restore(0, &good[0]).await, FailureKind::Unsupported, "no tokens"),
        (last.restore(0, &without_tokens).await, FailureKind::Corrupt, "hash"),
        (last.restore(0, b"nonsense").await, FailureKind::Unsupported, "version"),
        (first.restore(1, &good[0]).await, FailureKind::BadMessage, "holds no sequence"),
        (first.restore(99, &good[0]).await, FailureKind::BadMessage, "slot is 99"),
        (first.restore_as(stale, &good[0]).await, FailureKind::StaleEpoch, "epoch 1 is over"),
        (first.restore_as(stranger, &good[0]).await, FailureKind::Busy, "does not hold"),
        (first.restore_as(huge, &good[0]).await, FailureKind::BadMessage, "total_bytes"),
        (first.restore_as(short, &good[0]).await, FailureKind::BadMessage, "ended after"),
        (first.restore_as(long, &good[0]).await, FailureKind::BadMessage, "more than"),
    ];
    for (result, kind, word) in cases {
        let failure = result.unwrap_err();
        assert_eq!(failure.kind(), kind, "{word}: {failure}");
        assert!(failure.reason.contains(word), "{word}: {failure}");
    }
    // The stage has pages of 1024 positions, and a sequence has at most 512 of them, each with its token.
    let longest = first.health().await.state_bytes / 2 + 512 * 4 + SNAPSHOT_FRAME_BYTES;
    for (total_bytes, kind) in
        [(longest, FailureKind::Unsupported), (longest + 1, FailureKind::BadMessage)]
    {
        let bytes = vec![0; total_bytes as usize];
        let failure = first.restore(0, &bytes).await.unwrap_err();
        assert_eq!(failure.kind(), kind, "{total_bytes}: {failure}");
    }
    assert_eq!(first.snapshot(1).await.unwrap_err().kind(), FailureKind::BadMessage);
    assert_eq!(line.snapshots(0).await, good, "the sequence is as it was");
    line.go_on(0).await;
}

/// A model of the same shape whose last layer has other weights, as a fine-tuned one has.
fn tuned(path: &std::path::Path) -> std::path::PathBuf {
    let gguf = brigade_gguf::Gguf::open(path).unwrap();
    let tensor = gguf.require("blk.3.ffn_down.weight").unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    for byte in &mut bytes[tensor.offset as usize..][..tensor.nbytes as usize] {
        *byte ^= 1;
    }
    let tuned = path.with_extension("tuned");
    std::fs::write(&tuned, bytes).unwrap();
    tuned
}

#[tokio::test]
async fn weights_are_told_apart_wherever_they_come_from() {
    let dir = scratch();
    let path = synth_model(&dir, "Q8_0");
    let [model, tuned] = [path.clone(), tuned(&path)].map(|path| Model::open(&path));
    assert_eq!(model.header, tuned.header);
    let workers = real_workers(2);
    let mut line = Line::open(&workers, &model, &[0, 2, 4], 1).await;
    line.open_slot(0).await;
    line.prefill(0).await;
    let parts = line.snapshots(0).await;
    let whole = merge_snapshots(&parts).unwrap();
    // The same weights, pushed.
    let others = real_workers(2);
    let (clients, sources) = real_line(&others, &model, &[0, 1, 4], 1, true).await;
    assert_eq!(sources, [WeightSource::Cache; 2]);
    let mut line = Line::over(clients).await;
    line.open_slot(0).await;
    for (stage, layers) in [0..1, 1..4].into_iter().enumerate() {
        let part = select_layers(&whole, layers).unwrap();
        line.clients[stage].restore(0, &part).await.unwrap();
    }
    // Other weights in the last layer: the stage that has it refuses, the other has nothing against it.
    let mut line = Line::open(&others, &tuned, &[0, 2, 4], 2).await;
    line.open_slot(0).await;
    line.clients[0].restore(0, &parts[0]).await.unwrap();
    let failure = line.clients[1].restore(0, &parts[1]).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Unsupported, "{failure}");
    assert!(failure.reason.contains("other weights in layer 3"), "{failure}");
}

#[tokio::test]
async fn without_a_lane_there_is_nothing_to_read() {
    let dir = scratch();
    let model = Model::open(&synth_model(&dir, "Q8_0"));
    let workers = real_workers(1);
    let (mut clients, _) = real_line(&workers, &model, &[0, 4], 1, false).await;
    let failure = clients[0].snapshot(0).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::WrongPhase, "{failure}");
}

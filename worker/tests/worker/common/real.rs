//! Real stages behind real workers, and the synthetic models that they run.

use std::path::{Path, PathBuf};

use brigade_proto::control::{PrepareRequest, StageSpec, TensorRef, WeightSource};
use brigade_proto::pipeline::{ResultFrame, row_result};
use brigade_synth::{Arch, FileType, Shape};
use std::ops::Range;
use tonic::Streaming;

use super::model::{Model, blob};
use super::*;

/// A tiny model of four layers and 512 tokens.
pub fn synth_model(dir: &Path, quant: &str) -> PathBuf {
    let path = dir.join(format!("{quant}.gguf"));
    let spec = brigade_synth::Spec {
        arch: Arch::named("llama").unwrap(),
        shape: Shape::named("tiny").unwrap(),
        quant: FileType::named(quant).unwrap(),
        seed: 7,
        header_only: false,
    };
    brigade_synth::write(&spec, &path).unwrap();
    path
}

/// The tensors of a stage.
pub fn manifest(model: &Model, spec: &StageSpec) -> Vec<TensorRef> {
    let described = brigade_models::describe(&model.gguf).unwrap();
    let layers = spec.layer_begin as usize..spec.layer_end as usize;
    let tensors = brigade_spec::stage_tensors(&model.gguf, &described, &layers);
    let named = |t: &&brigade_gguf::TensorInfo| TensorRef {
        name: t.name.clone(),
        blob: Some(blob(model.bytes(&t.name))),
    };
    tensors.iter().map(named).collect()
}

/// A loaded line; workers get their weights by push if `remote`.
pub async fn real_line(
    workers: &[TestWorker],
    model: &Model,
    cuts: &[u32],
    epoch: u64,
    remote: bool,
) -> (Vec<Client>, Vec<WeightSource>) {
    let n = workers.len();
    let (mut clients, mut sources) = (Vec::new(), Vec::new());
    for stage in 0..n {
        let next = workers.get(stage + 1).map(|w| &w.address);
        let spec = spec(stage as u32, n as u32, cuts[stage]..cuts[stage + 1], next);
        let mut client = Client::connect(&workers[stage], "c", epoch).await;
        let tensors = manifest(model, &spec);
        let mut order = PrepareRequest { tensors, ..client.order_of(model, spec) };
        if remote {
            order.files.clear();
        }
        let reply = client.prepare(order).await.unwrap();
        let chunks = client.chunks(model, &reply.missing, 100_000);
        client.push(chunks).await.unwrap();
        let facts = client.load().await.unwrap();
        assert!(facts.weight_bytes > 0 && facts.state_bytes > 0);
        sources.push(facts.source());
        clients.push(client);
    }
    (clients, sources)
}

pub fn real_workers(n: usize) -> Vec<TestWorker> {
    (0..n).map(|_| TestWorker::real(&scratch(), |raw| raw.threads = Some(1))).collect()
}

/// More than one KV page of them.
pub const PROMPT: Range<u32> = 3..83;
/// Rows of a ubatch.
pub const ROWS: usize = 40;
/// Tokens of the line's next ubatch, in the order of the positions.
pub const MORE: &[u32] = &[42, 9, 250, 250];

/// A line with an open lane.
pub struct Line {
    pub clients: Vec<Client>,
    pub results: Streaming<ResultFrame>,
    pub lane: Lane,
    next_id: u64,
}

impl Line {
    pub async fn open(workers: &[TestWorker], model: &Model, cuts: &[u32], epoch: u64) -> Self {
        let (clients, _) = real_line(workers, model, cuts, epoch, false).await;
        Self::over(clients).await
    }

    /// A line of loaded stages.
    pub async fn over(mut clients: Vec<Client>) -> Self {
        let results = clients.last_mut().unwrap().results().await.unwrap();
        let lane = clients[0].open_lane(0).await.unwrap();
        Self { clients, results, lane, next_id: 0 }
    }

    /// Sends a ubatch and waits for all of its rows: the line is at rest then.
    pub async fn run(
        &mut self,
        ops: Vec<pb::SeqOp>,
        parts: Vec<pb::SeqPart>,
    ) -> Vec<pb::RowResult> {
        self.lane.send(ubatch(self.next_id, ops, parts)).await;
        self.next_id += 1;
        let mut rows = Vec::new();
        loop {
            let frame = next(&mut self.results).await;
            rows.extend(frame.rows);
            if frame.last {
                return rows;
            }
        }
    }

    /// Opens `slot` with two pages and a sampler that looks back at all tokens.
    pub async fn open_slot(&mut self, slot: u32) {
        let sampler = pb::SamplerSetup {
            top_p: 1.0,
            typical_p: 1.0,
            repeat_penalty: 1.7,
            penalty_last_n: 512,
            top_logprobs: Some(3),
            ..pb::SamplerSetup::default()
        };
        let open = pb::OpenOp {
            slot,
            blocks: vec![2 * slot, 2 * slot + 1],
            sampler: Some(sampler),
            request: format!("req-{slot}"),
        };
        self.run(vec![pb::SeqOp { op: Some(pb::seq_op::Op::Open(open)) }], vec![]).await;
    }

    /// The prompt, in an open slot.
    pub async fn prefill(&mut self, slot: u32) {
        let prompt: Vec<u32> = PROMPT.collect();
        for (i, tokens) in prompt.chunks(ROWS).enumerate() {
            let part = part(slot, (i * ROWS) as u32, tokens, pb::Want::Nothing);
            assert!(self.run(vec![], vec![part]).await.is_empty());
        }
    }

    /// Logits of all but the last of [`MORE`], and the token drawn after it, with its neighbours.
    pub async fn go_on(&mut self, slot: u32) -> Vec<row_result::Value> {
        let (pos, n) = (PROMPT.len() as u32, MORE.len() - 1);
        let mut rows = self.run(vec![], vec![part(slot, pos, &MORE[..n], pb::Want::Logits)]).await;
        let last = part(slot, pos + n as u32, &MORE[n..], pb::Want::Sample);
        rows.extend(self.run(vec![], vec![last]).await);
        assert_eq!(rows.len(), MORE.len());
        rows.into_iter().map(|row| row.value.unwrap()).collect()
    }
}

//! Real stages behind real workers, and the synthetic models that they run.

use std::path::{Path, PathBuf};

use brigade_engine::arch;
use brigade_engine::synth::{self, Arch, FileType, Shape};
use brigade_proto::control::{PrepareRequest, StageSpec, TensorRef, WeightSource};

use super::model::{Model, blob};
use super::*;

/// A tiny model of four layers and 512 tokens.
pub fn synth_model(dir: &Path, quant: &str) -> PathBuf {
    let path = dir.join(format!("{quant}.gguf"));
    let spec = synth::Spec {
        arch: Arch::named("llama").unwrap(),
        shape: Shape::named("tiny").unwrap(),
        quant: FileType::named(quant).unwrap(),
        seed: 7,
        header_only: false,
    };
    synth::write(&spec, &path).unwrap();
    path
}

/// The tensors of a stage.
pub fn manifest(model: &Model, spec: &StageSpec) -> Vec<TensorRef> {
    let described = arch::describe(&model.gguf).unwrap();
    let layers = spec.layer_begin as usize..spec.layer_end as usize;
    let tensors = arch::stage_tensors(&model.gguf, &described, &layers);
    let named = |t: &&brigade_engine::gguf::TensorInfo| TensorRef {
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

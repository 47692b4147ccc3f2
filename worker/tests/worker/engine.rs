//! The real stage behind real workers. A line gives the bits of the whole model in one place, for all sources of
//! weights and after any earlier work.

use std::path::Path;
use std::sync::Arc;

use crate::common::model::Model;
use crate::common::real::{manifest, real_line, synth_model};
use crate::common::*;
use brigade_engine::batch::{PageId, RowValue, SeqOp, SeqPart, SlotId, UBatch, Want};
use brigade_engine::device::Device;
use brigade_engine::kernels::{self, KvType};
use brigade_engine::stage::{Stage, StageConfig, StageOutput};
use brigade_gguf::Gguf;
use brigade_proto::control::{PrepareRequest, ProductSpeeds, WeightSource};
use brigade_proto::failure::FailureKind;
use brigade_proto::pipeline::{self as pb, row_result};

const TOKENS: &[u32] = &[5, 17, 300, 42, 9, 250, 250, 3, 77, 128, 511];

/// Logits of all positions from the engine itself, all layers at once.
fn reference(path: &Path) -> Vec<Vec<f32>> {
    let model = Arc::new(Gguf::open(path).unwrap());
    let config = StageConfig {
        n_slots: 1,
        n_blocks: 1,
        kv_type: KvType::F32,
        n_ctx: 64,
        max_rows: TOKENS.len(),
        windows: false,
        control_vectors: None,
        host_experts: 0,
        own_drafts: false,
    };
    let device = Device::cpu(kernels::select(None).unwrap(), 1, None).unwrap();
    let layers = 0..brigade_models::describe(&model).unwrap().n_layer();
    let mut stage = Stage::load(
        &brigade_models::described(&model).unwrap(),
        model.clone(),
        layers,
        config,
        device,
        &mut |_| (),
    )
    .unwrap();
    let blocks = vec![PageId(0)];
    let slot = SlotId(0);
    let part = SeqPart {
        slot,
        pos: 0,
        tokens: TOKENS.to_vec(),
        want: Want::Logits,
        mu: None,
        ahead: None,
    };
    let ops = vec![SeqOp::Open { slot, blocks, sampler: None, request: "r".into() }];
    let ubatch = UBatch { id: 0, ops, parts: vec![part] };
    let StageOutput::Rows(rows) = stage.forward(&ubatch, None).unwrap() else { panic!("rows") };
    let logits = rows.into_iter().map(|row| match row.value {
        RowValue::Logits(logits) => logits,
        other => panic!("logits were asked for, {other:?} came"),
    });
    logits.collect()
}

/// Logits of all positions from a line, the prompt cut in ubatches of `rows`.
async fn line_logits(clients: &mut [Client], rows: usize) -> Vec<Vec<f32>> {
    let mut results = clients.last_mut().unwrap().results().await.unwrap();
    let lane = clients[0].open_lane(0).await.unwrap();
    for (id, tokens) in TOKENS.chunks(rows).enumerate() {
        let ops = if id == 0 { vec![open(0)] } else { vec![] };
        let part = part(0, (id * rows) as u32, tokens, pb::Want::Logits);
        lane.send(ubatch(id as u64, ops, vec![part])).await;
    }
    let mut logits = Vec::new();
    while logits.len() < TOKENS.len() {
        for row in next(&mut results).await.rows {
            assert_eq!(row.pos as usize, logits.len());
            let Some(row_result::Value::Logits(raw)) = row.value else { panic!("logits") };
            let values = raw.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
            logits.push(values.collect());
        }
    }
    logits
}

#[tokio::test]
async fn a_line_gives_the_bits_of_the_whole_whatever_the_weights_way() {
    for quant in ["Q8_0", "Q4_K_M"] {
        let dir = scratch();
        let path = synth_model(&dir, quant);
        let (model, expected) = (Model::open(&path), reference(&path));
        let workers: Vec<TestWorker> =
            (0..3).map(|_| TestWorker::real(&scratch(), |raw| raw.threads = Some(1))).collect();
        let (mut clients, sources) = real_line(&workers, &model, &[0, 1, 3, 4], 1, false).await;
        assert_eq!(sources, [WeightSource::SharedFile; 3]);
        assert_eq!(line_logits(&mut clients, 4).await, expected, "{quant}");
        // Again in a new epoch on the same weights: the first one's sequence is forgotten.
        let (mut clients, sources) = real_line(&workers, &model, &[0, 1, 3, 4], 2, false).await;
        assert_eq!(sources, [WeightSource::Resident; 3]);
        assert_eq!(line_logits(&mut clients, 11).await, expected, "{quant}");
        // Other cuts, weights pushed.
        let (mut clients, sources) = real_line(&workers[..2], &model, &[0, 2, 4], 3, true).await;
        assert_eq!(sources, [WeightSource::Cache; 2]);
        assert_eq!(line_logits(&mut clients, 1).await, expected, "{quant}");
    }
}

#[tokio::test]
async fn with_fast_math_the_cpu_offers_the_table_of_it_alone() {
    let Some(fast) = kernels::fast() else {
        println!("skipped: this machine has no table of fast math");
        return;
    };
    let worker = TestWorker::real(&scratch(), |raw| {
        raw.device = Some("cpu".into());
        raw.fast_math = true;
    });
    let mut client = Client::connect(&worker, "c", 1).await;
    let caps = client.hello().await.capabilities.unwrap();
    assert_eq!(caps.kernel_tables, [fast.name]);
    assert_eq!(caps.kernel_numerics, [kernels::NUMERICS_PAIRS]);
}

#[tokio::test]
async fn capabilities_are_those_of_the_engine_and_its_needs_are_checked() {
    let dir = scratch();
    let model = Model::open(&synth_model(&dir, "Q8_0"));
    let worker = TestWorker::real(&dir, |raw| raw.memory = Some("2M".into()));
    let mut client = Client::connect(&worker, "c", 1).await;
    let caps = client.hello().await.capabilities.unwrap();
    assert!(caps.architectures.contains(&"llama".to_owned()));
    assert!(caps.quant_types.contains(&"Q4_K".to_owned()));
    assert!(caps.kernel_tables.contains(&"reference".to_owned()));
    assert!(caps.gb_per_second > 0.0 && caps.gop_per_second > 0.0);
    let ProductSpeeds { q6_k, q8_0, f16 } = caps.products.expect("speeds are measured by class");
    assert!([q6_k, q8_0, f16].iter().all(|speed| *speed > 0.0));
    let whole = spec(0, 1, 0..4, None);
    let tensors = manifest(&model, &whole);
    let order = PrepareRequest { tensors, ..client.order_of(&model, whole) };
    let failure = client.prepare(order.clone()).await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::NoMemory, "{failure}");
    // An op table that is not there is a refusal of the load.
    let worker = TestWorker::real(&dir, |_| ());
    let mut client = Client::connect(&worker, "c", 1).await;
    let mut order = order;
    order.spec.as_mut().unwrap().kernels = "abacus".into();
    client.prepare(order).await.unwrap();
    let failure = client.load().await.unwrap_err();
    assert_eq!(failure.kind(), FailureKind::Unsupported);
    assert!(failure.reason.contains("abacus"), "{failure}");
}

#[tokio::test]
async fn a_ubatch_that_does_not_fit_the_sequences_ends_the_lane_with_the_engines_reason() {
    let dir = scratch();
    let model = Model::open(&synth_model(&dir, "Q8_0"));
    let workers = [TestWorker::real(&dir, |raw| raw.threads = Some(1))];
    let (mut clients, _) = real_line(&workers, &model, &[0, 4], 1, false).await;
    let _results = clients[0].results().await.unwrap();
    let mut lane = clients[0].open_lane(0).await.unwrap();
    lane.send(ubatch(0, vec![open(0)], vec![part(0, 3, &[1], pb::Want::Nothing)])).await;
    let failure = lane.failure().await;
    assert_eq!(failure.kind(), FailureKind::Compute);
    assert!(failure.reason.contains("starts at position 3"), "{failure}");
}

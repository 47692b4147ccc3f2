//! A model of four times a GPU's memory: the plan puts experts with the host, and the device never takes more than the plan says.
//! Machines without a Vulkan driver skip.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use brigade_engine::batch::{PageId, SeqOp, SeqPart, SlotId, UBatch, Want};
use brigade_engine::device::{DeviceOptions, Devices, gpus};
use brigade_engine::kernels::KvType;
use brigade_engine::stage::{Stage, StageConfig, StageOutput};
use brigade_gguf::Gguf;
use brigade_model_tests::line::into_logits;
use brigade_plan::{
    ByClass, HostExperts, HostFacts, ModelFacts, Plan, PlanSettings, WorkerFacts, plan,
};
use brigade_spec::ModelError;
use brigade_synth::{Arch, Experts, FileType, Shape, Spec};

/// Times that the model is as large as the GPU's memory.
const TIMES: u64 = 4;

/// Rows of a ubatch, and positions of the sequence.
const ROWS: u32 = 8;
const POSITIONS: u32 = 64;

/// A model that is nearly all experts, which is removed at the end.
struct Mixture(PathBuf);

impl Mixture {
    fn new() -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("gpu-cap.gguf");
        let experts = Some(Experts { count: 32, used: 4, n_ff: 512 });
        let shape = Shape { vocab: 2048, experts, ..Shape::named("0.5b-moe").unwrap() };
        let spec = Spec {
            arch: Arch::named("qwen3moe").unwrap(),
            shape,
            quant: FileType::Q8_0,
            seed: 7,
            header_only: false,
        };
        brigade_synth::write(&spec, &path).unwrap();
        Self(path)
    }
}

impl Drop for Mixture {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The plan for a GPU with so much memory, beside a host with enough.
fn planned(facts: &ModelFacts, cap: u64) -> Plan {
    let host = HostFacts {
        memory: Some(1 << 40),
        gbps: 50.0,
        gops: ByClass::all(1000.0),
        sent_gbps: 0.0,
        sent_beside: false,
        experts: HostExperts::Auto,
    };
    let gpu = WorkerFacts {
        name: "gpu".to_owned(),
        memory: cap,
        gbps: 500.0,
        gops: ByClass::all(20_000.0),
        link: None,
        host: Some(host),
        holds: 0..0,
        node: None,
        disk: None,
    };
    let settings = PlanSettings {
        ctx: POSITIONS,
        least_ctx: POSITIONS,
        share_ctx: POSITIONS,
        max_seqs: 1,
        max_rows: ROWS,
        ..PlanSettings::default()
    };
    plan(facts, &[gpu], &settings).unwrap()
}

/// A stage of all layers, on a device that may take so much memory.
fn load(
    model: &Arc<Gguf>,
    device: &str,
    limit: Option<u64>,
    config: StageConfig,
) -> Result<Stage, ModelError> {
    let options = DeviceOptions { apart: true, memory_limit: limit, ..DeviceOptions::default() };
    let device = Devices::new(options).open(&device.parse().unwrap(), 1, None).unwrap();
    let described = brigade_models::described(model).unwrap();
    let layers = 0..described.spec.n_layer();
    Stage::load(&described, model.clone(), layers, config, device, &mut |_| {})
}

/// The bits of the logits of a prompt, and of a token behind it.
fn logits(stage: &mut Stage) -> Vec<u32> {
    let slot = SlotId(0);
    let part = |pos: u32, tokens: Vec<u32>| SeqPart {
        slot,
        pos,
        tokens,
        want: Want::Logits,
        mu: None,
        ahead: None,
    };
    let prompt: Vec<u32> = (0..ROWS).map(|i| 1 + i * 37).collect();
    let open = SeqOp::Open { slot, blocks: vec![PageId(0)], sampler: None, request: "test".into() };
    let ubatches = [
        UBatch { id: 0, ops: vec![open], parts: vec![part(0, prompt)] },
        UBatch { id: 1, ops: Vec::new(), parts: vec![part(ROWS, vec![5])] },
    ];
    let rows =
        ubatches.into_iter().flat_map(|ubatch| match stage.forward(&ubatch, None).unwrap() {
            StageOutput::Rows(rows) => rows,
            StageOutput::Boundary(_) => panic!("the only stage gives rows"),
        });
    rows.flat_map(into_logits).map(f32::to_bits).collect()
}

fn a_model_of_four_times_the_memory_runs() {
    if let Err(reason) = gpus() {
        return println!("skipped: {reason}");
    }
    let file = Mixture::new();
    let model = Arc::new(Gguf::open(&file.0).unwrap());
    let facts = ModelFacts::from_gguf(&model, KvType::F16).unwrap();
    let weights =
        facts.layers.iter().map(|layer| layer.weight_bytes).sum::<u64>() + facts.head_bytes;
    let cap = weights / TIMES;
    let plan = planned(&facts, cap);
    let stage = &plan.stages[0];
    let of_device = stage.memory.of_device();
    let config = |host_layers: usize| StageConfig {
        n_slots: 1,
        n_blocks: plan.capacity.n_blocks,
        kv_type: KvType::F16,
        n_ctx: POSITIONS,
        max_rows: ROWS as usize,
        windows: false,
        control_vectors: None,
        host_experts: host_layers as u32,
        own_drafts: false,
    };
    let mb = |bytes: u64| bytes as f64 / 1e6;
    println!(
        "{:.0} MB of weights, {:.0} MB of memory: experts of layers {:?} lie with the host, {:.0} MB; the device has {:.0} MB",
        mb(weights),
        mb(cap),
        stage.host_layers,
        mb(stage.memory.host_experts),
        mb(of_device)
    );
    assert!(of_device <= cap && stage.host_layers.len() > facts.layers.len() / 2);
    let want = logits(&mut load(&model, "unfused", None, config(0)).unwrap());
    // The device gives out no byte more than the plan says, so it takes none.
    let mut loaded =
        load(&model, "vulkan:0", Some(of_device), config(stage.host_layers.end)).unwrap();
    let held = loaded.facts().clone();
    println!(
        "loaded: {:.0} MB of weights on the device, {:.0} MB with the host, {:.1} MB of states",
        mb(held.weight_bytes - held.host_expert_bytes),
        mb(held.host_expert_bytes),
        mb(held.state_bytes)
    );
    assert!(held.weight_bytes - held.host_expert_bytes <= stage.memory.weights);
    assert!(held.host_expert_bytes <= stage.memory.host_experts);
    assert!(held.state_bytes <= stage.memory.kv + stage.memory.state);
    assert!(logits(&mut loaded) == want, "other bits");
    drop(loaded);
    // Without the host the same memory does not do.
    let refused =
        load(&model, "vulkan:0", Some(of_device), config(0)).err().map(|error| error.to_string());
    println!("without the host: {refused:?}");
    assert!(refused.is_some_and(|why| why.contains("no room")));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: a_model_of_four_times_the_memory_runs;
];

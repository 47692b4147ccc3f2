//! Planner and workers count a stage's memory alike: a worker refuses nothing that was planned for it, and asks its node's
//! ledger for all that was planned.

use std::path::PathBuf;
use std::sync::Arc;

use brigade_engine::kernels::KvType;
use brigade_gguf::Gguf;
use brigade_plan::{ByClass, ModelFacts, PROCESS_BYTES, Plan, PlanSettings, WorkerFacts, plan};
use brigade_proto::control::{KvType as WireKv, StageSpec};
use brigade_synth::{Arch, FileType, Shape, Spec};
use brigade_worker::backend::{StageBackend, StageNeeds};
use brigade_worker::config::{Config, RawConfig};
use brigade_worker::stage::cpu_backend;

/// Kinds of layers, of ends and of states.
const MODELS: [(&str, &str); 6] = [
    ("llama", "0.6b"),
    ("llama", "tiny"),
    ("qwen3moe", "0.5b-moe"),
    ("granitehybrid", "tiny"),
    ("rwkv7", "tiny"),
    ("bert", "tiny-encoder"),
];

fn header(arch: &str, size: &str) -> Gguf {
    let spec = Spec {
        arch: Arch::named(arch).unwrap(),
        shape: Shape::named(size).unwrap(),
        quant: FileType::Q4_K_M,
        seed: 1,
        header_only: true,
    };
    let name = format!("brigade-plan-needs-{}-{arch}-{size}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    brigade_synth::write(&spec, &path).unwrap();
    let model = Gguf::open_header_only(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    model
}

fn backend() -> Arc<dyn StageBackend> {
    let raw = RawConfig {
        listen: "127.0.0.1:0".to_owned(),
        device: Some("cpu".to_owned()),
        memory: Some("1G".to_owned()),
        cache_dir: Some(PathBuf::from("/nowhere")),
        threads: Some(1),
        ..RawConfig::default()
    };
    cpu_backend(&Config::validate(raw, &|_| None).unwrap()).unwrap()
}

/// What a worker counts for a stage of the plan.
fn counted(backend: &dyn StageBackend, model: &Gguf, plan: &Plan, stage: usize) -> StageNeeds {
    let layers = plan.stages[stage].layers.clone();
    let spec = StageSpec {
        stage: stage as u32,
        n_stages: plan.stages.len() as u32,
        layer_begin: layers.start as u32,
        layer_end: layers.end as u32,
        max_seqs: plan.capacity.n_slots,
        n_blocks: plan.capacity.n_blocks,
        max_ctx: plan.settings.ctx,
        max_rows: plan.settings.max_rows,
        kv_type: WireKv::F16.into(),
        ..StageSpec::default()
    };
    backend.needs(model, &spec).unwrap()
}

fn a_worker_counts_what_was_planned_for_it() {
    let backend = backend();
    for (arch, size) in MODELS {
        let model = header(arch, size);
        let facts = ModelFacts::from_gguf(&model, KvType::F16).unwrap();
        for (n_workers, max_rows) in [(1, 32), (1, 8192), (2, 512), (2, 8192)] {
            let worker = WorkerFacts {
                name: "worker".to_owned(),
                memory: 64 << 30,
                gbps: 10.0,
                gops: ByClass::all(100.0),
                link: None,
                host: None,
                holds: 0..0,
                node: None,
                disk: None,
            };
            let settings = PlanSettings { max_rows, ..PlanSettings::default() };
            let plan = plan(&facts, &vec![worker; n_workers], &settings).unwrap();
            assert_eq!(plan.stages.len(), n_workers);
            for (at, stage) in plan.stages.iter().enumerate() {
                let needs = counted(backend.as_ref(), &model, &plan, at);
                let planned = stage.memory;
                let what = format!("{arch} {size}, {max_rows} rows, layers {:?}", stage.layers);
                println!("{what}: {planned:?}, {needs:?}");
                assert_eq!(needs.weight_bytes, planned.weights, "{what}");
                assert_eq!(needs.stage_bytes(), planned.total() - PROCESS_BYTES, "{what}");
                let states = planned.kv + planned.state;
                assert!(needs.state_bytes > states && needs.loading_bytes > 0, "{what}");
            }
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        a_worker_counts_what_was_planned_for_it;
];

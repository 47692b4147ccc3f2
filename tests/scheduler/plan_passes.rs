//! Models that go through their layers more than once: the plan counts a layer's weights once for each stage, for any
//! number of passes.

use brigade_engine::kernels::KvType;
use brigade_gguf::Gguf;
use brigade_plan::{ByClass, ModelFacts, PlanSettings, WorkerFacts, plan};
use brigade_synth::{Arch, FileType, Shape, Spec};

/// Facts of a synthetic model, from its header.
fn synthetic(arch: &str, size: &str) -> ModelFacts {
    let spec = Spec {
        arch: Arch::named(arch).unwrap(),
        shape: Shape::named(size).unwrap(),
        quant: FileType::Q8_0,
        seed: 1,
        header_only: true,
    };
    let name = format!("brigade-plan-passes-{}-{arch}-{size}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    brigade_synth::write(&spec, &path).unwrap();
    let model = Gguf::open_header_only(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    ModelFacts::from_gguf(&model, KvType::F16).unwrap()
}

fn workers(n: usize) -> Vec<WorkerFacts> {
    let worker = |i| WorkerFacts {
        name: format!("w{i}"),
        memory: 4 << 30,
        gbps: 10.0,
        gops: ByClass::all(200.0),
        link: None,
        host: None,
        holds: 0..0,
        node: None,
        disk: None,
    };
    (0..n).map(worker).collect()
}

fn passes_through_a_layer_are_planned_with_its_weights_once() {
    let facts = synthetic("nanbeige", "1b");
    let passes = facts.passes().unwrap();
    assert!(passes.starts_with("32 layers, which are 16 of the file"), "{passes}");
    let same: Vec<_> = facts.layers.iter().map(|layer| layer.same_weights).collect();
    assert_eq!(same, [vec![None; 16], (0..16).map(Some).collect()].concat());
    let one_pass: u64 = facts.layers[..16].iter().map(|layer| layer.weight_bytes).sum();
    // Halves of a line have other passes of the same layers.
    let plan = plan(&facts, &workers(2), &PlanSettings::default()).unwrap();
    let cut = plan.stages[0].layers.end;
    assert!((14..=18).contains(&cut), "{cut}");
    let ends = [facts.embedding_bytes, facts.head_bytes];
    for (stage, end) in plan.stages.iter().zip(ends) {
        let all: u64 = facts.layers[stage.layers.clone()].iter().map(|l| l.weight_bytes).sum();
        assert_eq!(stage.memory.weights, one_pass.min(all) + end, "{:?}", stage.layers);
    }
    assert!(plan.explain().contains(&passes), "{}", plan.explain());
}

fn the_vector_that_waits_crosses_cuts_until_the_last_pass() {
    let facts = synthetic("hrm_text", "1b");
    let row = 4 * 2048;
    assert_eq!(facts.layers.len(), 48);
    assert!(facts.passes().unwrap().starts_with("48 layers, which are 16 of the file"));
    assert!(facts.cut_bytes[1..40].iter().all(|bytes| *bytes == 2 * row));
    assert!(facts.cut_bytes[40..].iter().all(|bytes| *bytes == row));
    let adapters = synthetic("graniteswitch", "tiny");
    // A row reads one of four adapters.
    assert_eq!((adapters.layers[1].expert_share, adapters.cut_bytes[1]), (0.25, 4 * 257));
    // Keys and values of two heads of 64, and before the first layer those that find the adapter.
    let kv = |layer: usize| adapters.layers[layer].kv_bytes;
    assert_eq!([kv(0), kv(1)], [2 * 2 * (2 * 64 + 32), 2 * 2 * 2 * 64]);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        passes_through_a_layer_are_planned_with_its_weights_once,
        the_vector_that_waits_crosses_cuts_until_the_last_pass;
];

//! Workers of two devices: the layers whose routed experts lie with the host beside a GPU, the contents of both
//! memories, and the speed.

use std::sync::atomic::{AtomicUsize, Ordering};

use brigade_engine::device::bytes_for_guests;
use brigade_engine::kernels::KvType;
use brigade_gguf::Gguf;
use brigade_plan::{
    ByClass, HostExperts, HostFacts, LayerFacts, ModelFacts, Plan, PlanSettings, WorkerFacts, plan,
};
use brigade_synth::{Arch, FileType, Shape, Spec};
use proptest::prelude::*;

use super::plan_random::any_model;

/// A mixture of 128 experts, from its header.
pub(super) fn mixture() -> ModelFacts {
    let spec = Spec {
        arch: Arch::named("qwen3moe").unwrap(),
        shape: Shape::named("0.5b-moe").unwrap(),
        quant: FileType::Q8_0,
        seed: 1,
        header_only: true,
    };
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("brigade-plan-beside-{}-{number}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    brigade_synth::write(&spec, &path).unwrap();
    let model = Gguf::open_header_only(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    ModelFacts::from_gguf(&model, KvType::F16).unwrap()
}

pub(super) fn gpu(memory: u64, host: Option<HostFacts>) -> WorkerFacts {
    WorkerFacts {
        name: "gpu".to_owned(),
        memory,
        gbps: 500.0,
        gops: ByClass::all(20_000.0),
        link: None,
        host,
        holds: 0..0,
        node: None,
        disk: None,
    }
}

fn host(memory: u64, experts: HostExperts) -> HostFacts {
    let (sent_gbps, sent_beside) = (0.0, false);
    let (memory, gops) = (Some(memory), ByClass::all(1000.0));
    HostFacts { memory, gbps: 50.0, gops, sent_gbps, sent_beside, experts }
}

fn planned(model: &ModelFacts, worker: &WorkerFacts) -> Result<Plan, String> {
    let settings = PlanSettings { max_rows: 64, ..PlanSettings::default() };
    plan(model, std::slice::from_ref(worker), &settings).map_err(|error| error.to_string())
}

fn routed(model: &ModelFacts, n: usize) -> u64 {
    model.layers[..n].iter().map(|layer| layer.routed_bytes).sum()
}

fn experts_that_do_not_fit_on_the_gpu_lie_with_the_host() {
    let model = mixture();
    let n = model.layers.len();
    let all = planned(&model, &gpu(1 << 40, None)).unwrap().stages.remove(0);
    assert_eq!(all.memory.host_experts, 0);
    let total = all.memory.total();
    let free = |memory| gpu(memory, Some(host(1 << 40, HostExperts::Auto)));
    let mut before = 0..0;
    // Less and less memory: more and more layers' experts go, never more than needed.
    for percent in [100, 90, 70, 50, 30] {
        let memory = total * percent / 100;
        let stage = planned(&model, &free(memory)).unwrap().stages.remove(0);
        let layers = stage.host_layers.clone();
        assert_eq!(stage.memory.host_experts, routed(&model, layers.end), "{percent} %");
        assert!(stage.memory.of_device() <= memory, "{percent} %");
        assert_eq!(stage.memory.of_device() + stage.memory_left, memory, "{percent} %");
        assert_eq!(stage.memory.of_host() + stage.host_left.unwrap(), 1 << 40, "{percent} %");
        assert!(layers.end >= before.end && layers.end <= n, "{percent} %: {layers:?}");
        before = layers;
    }
    assert!(before.end > 0, "experts of some layers lie with the host");
    let half = all.memory.weights / 2;
    let refused = planned(&model, &gpu(half, None)).unwrap_err();
    assert!(refused.contains("does not fit"), "{refused}");
    // The host's memory is counted too.
    let little = gpu(half, Some(host(1 << 20, HostExperts::Auto)));
    let refused = planned(&model, &little).unwrap_err();
    assert!(refused.contains("gpu lacks"), "{refused}");
}

fn so_many_layers_are_placed_as_ordered() {
    let model = mixture();
    let n = model.layers.len() as u32;
    let ordered = |experts| planned(&model, &gpu(1 << 40, Some(host(1 << 40, experts))));
    let of = |experts| ordered(experts).unwrap().stages.remove(0);
    for (experts, upto) in
        [(HostExperts::Auto, 0), (HostExperts::Layers(0), 0), (HostExperts::Layers(3), 3)]
    {
        assert_eq!(of(experts).host_layers.len(), upto, "{experts:?}");
    }
    let all = of(HostExperts::All);
    assert_eq!(all, of(HostExperts::Layers(n)));
    assert_eq!(all.host_layers, 0..n as usize);
    let text = ordered(HostExperts::All).unwrap().explain();
    assert!(
        text.contains("lie in the host's memory and are computed there (as ordered)"),
        "{text}"
    );
    // It is slower by the host's time for them.
    let none = of(HostExperts::Layers(0));
    assert!(all.time.decode_us > none.time.decode_us && all.time.prefill_us > none.time.prefill_us);
    let refused = ordered(HostExperts::Layers(n + 1)).unwrap_err();
    assert!(refused.contains(&format!("--n-cpu-moe {n} or less")), "{refused}");
    // In one memory for both, all of it counts there.
    let shared = HostFacts { memory: None, ..host(0, HostExperts::All) };
    let stage = planned(&model, &gpu(1 << 40, Some(shared))).unwrap().stages.remove(0);
    assert_eq!(stage.memory.total() + stage.memory_left, 1 << 40);
    assert_eq!((stage.memory.host_experts, stage.host_left), (all.memory.host_experts, None));
}

fn experts_that_are_sent_make_prompts_faster_and_take_room() {
    let model = mixture();
    let stage = |sent_gbps, max_rows| {
        let host = HostFacts { sent_gbps, ..host(1 << 40, HostExperts::All) };
        let settings = PlanSettings { max_rows, ..PlanSettings::default() };
        plan(&model, &[gpu(1 << 40, Some(host))], &settings).unwrap().stages.remove(0)
    };
    let (without, with) = (stage(0.0, 2048), stage(25.0, 2048));
    println!(
        "a prompt's row takes {:.2} us with the host's experts, {:.2} where some are sent",
        without.time.prefill_us, with.time.prefill_us
    );
    assert!(with.time.prefill_us < 0.8 * without.time.prefill_us);
    assert_eq!(with.time.decode_us, without.time.decode_us);
    let room = bytes_for_guests(model.layers.iter().map(LayerFacts::matrices));
    assert!(room > 0);
    assert_eq!(with.memory.weights, without.memory.weights + room);
    // Few rows of each expert do not pay: the host reads all of their weights for them.
    assert!(stage(25.0, 16).time.prefill_us >= stage(0.0, 16).time.prefill_us);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Neither memory is ever given more than it has, and no layer's experts lie with the host that need not.
    #[allow(clippy::missing_panics_doc, reason = "a test")]
    fn no_memory_is_given_more_than_it_has(
        model in any_model(),
        memories in prop::collection::vec((150u64..1500, 0u64..900), 1..4),
    ) {
        let workers: Vec<WorkerFacts> = memories
            .iter()
            .map(|(own, beside)| gpu(own << 20, Some(host(beside << 20, HostExperts::Auto))))
            .collect();
        let settings = PlanSettings { ctx: 256, max_seqs: 4, max_rows: 64, ..PlanSettings::default() };
        let Ok(plan) = plan(&model, &workers, &settings) else { return Ok(()) };
        for stage in &plan.stages {
            let worker = &workers[stage.worker];
            prop_assert!(stage.memory.of_device() <= worker.memory);
            prop_assert!(stage.memory.of_host() <= worker.host.unwrap().memory.unwrap());
            let last = stage.host_layers.clone().next_back();
            let last = last.map_or(0, |layer| model.layers[layer].routed_bytes);
            prop_assert!(last == 0 || stage.memory_left < last, "one layer more fits on the GPU");
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        experts_that_do_not_fit_on_the_gpu_lie_with_the_host,
        so_many_layers_are_placed_as_ordered,
        experts_that_are_sent_make_prompts_faster_and_take_room,
        no_memory_is_given_more_than_it_has;
];

//! The planner by random cases: no other cut is faster, and memory is kept.

use std::ops::Range;

use brigade_plan::{
    ByClass, DraftFacts, Keep, LayerFacts, LinkFacts, LoadingMemory, ModelFacts, Plan, PlanError,
    PlanSettings, WorkerFacts, plan,
};
use proptest::prelude::*;

use crate::plan::{layers, slowest};

/// Every way to give `n` layers to `w` workers in order, some of them nothing.
pub fn all_cuts(n: usize, w: usize) -> Vec<Vec<Range<usize>>> {
    if w == 1 {
        return vec![vec![0..n]];
    }
    let first = |taken: usize| {
        all_cuts(n - taken, w - 1).into_iter().map(move |rest| {
            let moved = rest.into_iter().map(|r| r.start + taken..r.end + taken);
            std::iter::once(0..taken).chain(moved).collect()
        })
    };
    (0..=n).flat_map(first).collect()
}

/// A number for each class of products.
fn any_of_classes(numbers: Range<u64>) -> impl Strategy<Value = ByClass<u64>> {
    let values = [numbers.clone(), numbers.clone(), numbers.clone(), numbers];
    values.prop_map(|[nibble, halves, byte, float]| ByClass { nibble, halves, byte, float })
}

pub fn any_model() -> impl Strategy<Value = ModelFacts> {
    let elements = any_of_classes(1..20);
    let layer = (1u64..200, 0u64..100, 0u64..3, 0u64..5, elements).prop_map(
        |(dense, experts, kv, state, elements)| LayerFacts {
            expert_matrices: [0; 6],
            weight_bytes: (dense + experts) << 20,
            same_weights: None,
            expert_bytes: experts << 20,
            expert_share: 0.25,
            routed_bytes: experts << 20,
            elements: elements.map(|n| n << 20),
            routed_elements: elements.map(|n| n << 19),
            kv_bytes: kv << 10,
            window: None,
            kv_small_bytes: 0,
            conv_bytes: 0,
            scan_bytes: state << 20,
        },
    );
    let parts = (prop::collection::vec(layer, 1..8), 0u64..300, 0u64..300, any_of_classes(0..99));
    parts.prop_map(|(layers, embedding, head, head_elements)| ModelFacts {
        cut_bytes: (0..layers.len() as u64).map(|i| i * 1000).collect(),
        layers,
        embedding_bytes: embedding << 20,
        head_bytes: head << 20,
        head_elements: head_elements.map(|n| n << 20),
        ..no_layers()
    })
}

/// What random models have in common.
pub fn no_layers() -> ModelFacts {
    ModelFacts {
        name: "any".to_owned(),
        cut_bytes: Vec::new(),
        layers: Vec::new(),
        embedding_bytes: 0,
        head_bytes: 0,
        head_elements: ByClass::all(0),
        drafts: DraftFacts::default(),
        scratch_bytes_per_row: 1000,
        logits_bytes: 4000,
        loading: LoadingMemory::default(),
        n_ctx_train: 4096,
        stored: Default::default(),
    }
}

fn any_workers() -> impl Strategy<Value = Vec<WorkerFacts>> {
    let link = prop::option::of(
        (1u32..100).prop_map(|g| LinkFacts { gbps: f64::from(g) * 0.001, latency_us: 0.0 }),
    );
    let worker = (200u64..2000, 1u32..100, any_of_classes(1..1000), link);
    prop::collection::vec(worker, 1..5).prop_map(|all| {
        let facts =
            |(i, (memory, gbps, gops, link)): (usize, (u64, u32, ByClass<u64>, _))| WorkerFacts {
                name: format!("w{i}"),
                memory: memory << 20,
                gbps: f64::from(gbps),
                gops: gops.map(|n| n as f64),
                link,
                host: None,
                holds: 0..0,
                node: None,
                disk: None,
            };
        all.into_iter().enumerate().map(facts).collect()
    })
}

/// Slowest stage of the best of all cuts at the plan's own capacity, with workers in the plan's order. The
/// costs are written out here once more, layer by layer, to check the planner's running sums.
fn brute_force(model: &ModelFacts, workers: &[&WorkerFacts], plan: &Plan) -> f64 {
    let s = &plan.settings;
    let n = model.layers.len();
    let products_us = |w: &WorkerFacts, elements: ByClass<u64>| {
        let of = |(n, gops): (u64, f64)| 2.0 * n as f64 / gops * 1e-3;
        elements.values().into_iter().zip(w.gops.values()).map(of).sum::<f64>()
    };
    let unit = |w: &WorkerFacts, r: &Range<usize>| -> Option<f64> {
        if r.is_empty() {
            return Some(0.0);
        }
        let (first, last) = (r.start == 0, r.end == n);
        let batch = f64::from(s.decode_batch);
        let (mut bytes, mut us) = (brigade_plan::PROCESS_BYTES, 0.0);
        bytes += u64::from(s.max_rows) * (1000 + if last { 4000 } else { 0 });
        for l in &model.layers[r.clone()] {
            let positions = u64::from(plan.capacity.n_blocks * s.block_positions);
            bytes += l.weight_bytes + l.kv_bytes * positions;
            bytes += l.state_bytes() * plan.capacity.n_states();
            let read = l.read_bytes(batch) / batch
                + (l.kv_bytes * u64::from(s.typical_positions) + 2 * l.state_bytes()) as f64;
            let products = products_us(w, l.elements);
            us += (read / w.gbps * 1e-3).max(products) + s.prompt_per_generated * products;
        }
        bytes += if first { model.embedding_bytes } else { 0 };
        bytes += if last { model.head_bytes } else { 0 };
        if last {
            let read = model.head_bytes as f64 / batch / w.gbps * 1e-3;
            us += read.max(products_us(w, model.head_elements));
        } else if let Some(link) = w.link {
            let send = model.cut_bytes[r.end] as f64 / link.gbps * 1e-3;
            us = us.max((1.0 + s.prompt_per_generated) * send);
        }
        (bytes <= w.memory).then_some(us)
    };
    all_cuts(n, workers.len())
        .iter()
        .filter_map(|cuts| {
            let each = workers.iter().zip(cuts).map(|(w, r)| unit(w, r));
            each.collect::<Option<Vec<f64>>>().map(|us| us.into_iter().fold(0.0, f64::max))
        })
        .fold(f64::INFINITY, f64::min)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    fn no_other_cut_is_faster_and_memory_is_kept(
        model in any_model(),
        workers in any_workers(),
        keep in 0u32..9,
    ) {
        let settings = PlanSettings { ctx: 256, max_seqs: 4, keep: Keep::States(keep), ..PlanSettings::default() };
        match plan(&model, &workers, &settings) {
            Ok(plan) => {
                let none = PlanSettings { keep: Keep::NOTHING, ..settings };
                let without = brigade_plan::plan(&model, &workers, &none).unwrap();
                prop_assert_eq!(plan.capacity.n_blocks, without.capacity.n_blocks);
                prop_assert!(slowest(&plan) <= slowest(&without) * (1.0 + 1e-9));
                prop_assert!(plan.capacity.n_kept <= keep);
                for stage in &plan.stages {
                    let limit = workers[stage.worker].memory;
                    prop_assert_eq!(stage.memory.total() + stage.memory_left, limit);
                }
                let covered: Vec<usize> = layers(&plan).into_iter().flatten().collect();
                prop_assert_eq!(covered, (0..model.layers.len()).collect::<Vec<_>>());
                // The stages' order, with the unused ones where the given order has them.
                let mut order: Vec<usize> = plan.stages.iter().map(|s| s.worker).collect();
                if order.is_sorted() {
                    order = (0..workers.len()).collect();
                }
                let row: Vec<_> = order.iter().map(|&w| &workers[w]).collect();
                let best = brute_force(&model, &row, &plan);
                prop_assert!((slowest(&plan) / best - 1.0).abs() < 1e-6, "{} {best}", plan.explain());
            }
            Err(PlanError::DoesNotFit(shortage)) => {
                prop_assert!(!shortage.short.is_empty());
            }
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: no_other_cut_is_faster_and_memory_is_kept;
];

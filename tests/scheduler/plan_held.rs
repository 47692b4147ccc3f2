//! Cuts over workers that have layers in memory already: weights stay where they are, unless that would make the line
//! slower.

use std::ops::Range;

use brigade_plan::{
    DraftFacts, LayerFacts, LoadingMemory, ModelFacts, Plan, PlanSettings, WorkerFacts, plan,
};

use super::plan::{few_bits, workers};

/// Thirty-two equal layers and a head worth two of them.
fn reference() -> ModelFacts {
    let layer = LayerFacts {
        weight_bytes: 10 << 20,
        elements: few_bits(16 << 20),
        kv_bytes: 1024,
        ..LayerFacts::default()
    };
    ModelFacts {
        name: "32 layers".to_owned(),
        layers: vec![layer; 32],
        embedding_bytes: 20 << 20,
        head_bytes: 20 << 20,
        head_elements: few_bits(32 << 20),
        drafts: DraftFacts::default(),
        cut_bytes: (0..32).map(|i| if i == 0 { 0 } else { 4096 }).collect(),
        scratch_bytes_per_row: 100_000,
        logits_bytes: 128_000,
        loading: LoadingMemory::default(),
        n_ctx_train: 4096,
        stored: Default::default(),
    }
}

fn slowest(plan: &Plan) -> f64 {
    plan.slowest_us()
}

fn layers(plan: &Plan) -> Vec<Range<usize>> {
    plan.stages.iter().map(|s| s.layers.clone()).collect()
}

/// Workers that have these layers in memory.
fn holding(held: &[Range<usize>]) -> Vec<WorkerFacts> {
    let workers = workers(held.len(), 4 << 30).into_iter().zip(held);
    workers.map(|(worker, held)| WorkerFacts { holds: held.clone(), ..worker }).collect()
}

fn a_new_cut_leaves_layers_where_they_are() {
    let (model, settings) = (reference(), PlanSettings::default());
    let cut = |held: &[Range<usize>]| plan(&model, &holding(held), &settings).unwrap();
    let three = cut(&[0..0, 0..0, 0..0]);
    let own = layers(&three);
    // The middle one is lost: both others get some of its layers, and lose none.
    let (first, last) = (own[0].clone(), own[2].clone());
    let two = layers(&cut(&[first.clone(), last.clone()]));
    assert!(two[0].end >= first.end && two[1].start <= last.start, "{two:?} after {own:?}");
    // A spare that is named last takes its place, in its place.
    let plan = cut(&[first.clone(), last.clone(), 0..0]);
    assert_eq!(layers(&plan), own);
    assert_eq!(plan.stages.iter().map(|s| s.worker).collect::<Vec<_>>(), [0, 2, 1]);
    assert!(plan.explain().contains("of weights stay in the memory"), "{}", plan.explain());
}

fn layers_move_where_that_makes_a_faster_line() {
    let (model, settings) = (reference(), PlanSettings::default());
    let best = plan(&model, &workers(2, 4 << 30), &settings).unwrap();
    // One has nearly all: to leave them there would make the line much slower.
    let uneven = plan(&model, &holding(&[0..30, 30..32]), &settings).unwrap();
    assert!(slowest(&uneven) <= slowest(&best) * 1.05 + 1e-9);
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: a_new_cut_leaves_layers_where_they_are, layers_move_where_that_makes_a_faster_line;
];

//! Ops that a stage tells its device: a llama's pass on one that computes nothing.

use std::sync::Arc;

use brigade_device_tests::Null;
use brigade_engine::device::Device;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{Line, LineConfig};

/// Layers of the model.
const N_LAYER: usize = 5;

/// Attention: queries, keys and values in one op, of which the first two are rotated.
const ATTENTION: [&str; 8] =
    ["RmsNorm", "Products", "Rope", "Rope", "KvWrite", "Attend", "Products", "Combine"];

/// The feed-forward network: gate and up in one op, the gate's function, and down.
const FFN: [&str; 5] = ["RmsNorm", "Products", "Combine", "Products", "Combine"];

/// Behind the last attention only the wanted rows go on.
const WANTED: [&str; 1] = ["GatherRows"];

/// Ops behind the last layer: a norm, and the output matrix.
const HEAD: [&str; 2] = ["RmsNorm", "Products"];

/// The ops of a pass come in their order, and nothing else: this device claims to have all of them, so none falls back, and no
/// copy is made on the way.
fn a_llama_is_told_op_by_op() {
    let path = Golden::repository().named("llama");
    let null = Arc::new(Null::default());
    let device = |_| Device::beside_host(null.clone(), "null", 1, None).unwrap();
    let mut line = Line::open_on(&path, &LineConfig::default(), &device);
    null.told();
    let logits = line.logits(&[1, 2, 3], 3);
    let told = null.told();
    println!("{} ops: {told:?}", told.len());
    assert!(logits.iter().flatten().all(|logit| *logit == 0.0), "nothing is computed");
    let layer = [&ATTENTION[..], &FFN].concat();
    let last = [&ATTENTION[..], &WANTED, &FFN].concat();
    let pass = [layer.repeat(N_LAYER - 1), last, HEAD.to_vec()].concat();
    assert_eq!(told, pass);
}

/// A device can be written in a hundred lines.
fn it_is_a_device_in_a_hundred_lines() {
    let lines = include_str!("../../src/null.rs").lines().count();
    assert!(lines <= 100, "{lines} lines");
}

pub const TESTS: &[brigade_harness::Test] =
    brigade_harness::tests![computes: a_llama_is_told_op_by_op, it_is_a_device_in_a_hundred_lines;];

//! A model with a table of positions ends with it: a stage is not loaded for a longer context, and takes no position beyond.

use std::path::PathBuf;
use std::sync::Arc;

use brigade_engine::batch::{SeqPart, SlotId, UBatch, Want};
use brigade_engine::device::Device;
use brigade_engine::error::BatchError;
use brigade_engine::kernels::KvType;
use brigade_engine::stage::{Stage, StageConfig};
use brigade_gguf::Gguf;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{self, Line, LineConfig};

/// Positions of the table that `synth` gives the golden sizes.
const LEARNED: u32 = 4096;

fn gpt2() -> PathBuf {
    Golden::repository().named("gpt2")
}

fn a_stage_is_not_loaded_for_a_longer_context() {
    let model = Arc::new(Gguf::open(gpt2()).unwrap());
    let load = |n_ctx| {
        let device = Device::cpu(line::serving(), 1, None).unwrap();
        let (n_slots, n_blocks, kv_type) = (1, 1, KvType::F32);
        let config = StageConfig {
            n_slots,
            n_blocks,
            kv_type,
            n_ctx,
            max_rows: 8,
            windows: false,
            control_vectors: None,
            host_experts: 0,
            own_drafts: false,
        };
        Stage::load(
            &brigade_models::described(&model).unwrap(),
            model.clone(),
            0..2,
            config,
            device,
            &mut |_| {},
        )
        .map(|_| ())
    };
    load(LEARNED).unwrap();
    let message = load(LEARNED + 1).unwrap_err().to_string();
    assert!(message.contains("4097") && message.contains("4096"), "{message}");
}

fn a_part_beyond_the_table_is_refused() {
    let mut line = Line::open(&gpt2(), &LineConfig::default());
    let mut at = |pos: u32, n: u32| {
        let tokens = (1..=n).collect();
        let part =
            SeqPart { slot: SlotId(0), pos, tokens, want: Want::Logits, mu: None, ahead: None };
        let ub = UBatch { id: 0, ops: Vec::new(), parts: vec![part] };
        line.stages()[0].forward(&ub, None).unwrap_err()
    };
    for (pos, n) in [(LEARNED, 1), (LEARNED - 3, 4), (u32::MAX, 1)] {
        let wanted = BatchError::NoSuchPosition { slot: SlotId(0), n_positions: LEARNED };
        assert_eq!(at(pos, n), wanted);
    }
    // What the table has is refused for another reason: the slot was not opened.
    assert_eq!(at(LEARNED - 3, 3), BatchError::NotOpen(SlotId(0)));
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes: a_stage_is_not_loaded_for_a_longer_context, a_part_beyond_the_table_is_refused;
];

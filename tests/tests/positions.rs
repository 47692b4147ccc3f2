//! A model with a table of positions ends with it: a longer context is refused before there is any work, and a stage
//! takes no position beyond.

use std::path::PathBuf;
use std::sync::Arc;

use brigade_engine::batch::{SeqPart, SlotId, UBatch, Want};
use brigade_engine::device::Device;
use brigade_engine::error::BatchError;
use brigade_engine::gguf::Gguf;
use brigade_engine::kernels::KvType;
use brigade_engine::stage::{Stage, StageConfig};
use brigade_line::model::Model;
use brigade_tests::golden::Golden;
use brigade_tests::line::{self, Line, LineConfig};

/// Positions of the table that `synth` gives the golden sizes.
const LEARNED: u32 = 4096;

fn gpt2() -> PathBuf {
    Golden::repository().named("gpt2")
}

#[test]
fn a_context_beyond_the_table_is_refused_before_a_worker_starts() {
    let model = Model::open_header_only(&gpt2()).unwrap();
    for fits in [None, Some(1), Some(LEARNED)] {
        model.check_ctx(fits).unwrap();
    }
    let message = model.check_ctx(Some(LEARNED + 1)).unwrap_err().to_string();
    for word in ["4097", "4096", "gpt2", "--ctx"] {
        assert!(message.contains(word), "{message}");
    }
    let rotated = Golden::repository().named("starcoder2");
    Model::open_header_only(&rotated).unwrap().check_ctx(Some(1 << 20)).unwrap();
}

#[test]
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
        };
        Stage::load(&model, model.clone(), 0..2, config, device, &mut |_| {}).map(|_| ())
    };
    load(LEARNED).unwrap();
    let message = load(LEARNED + 1).unwrap_err().to_string();
    assert!(message.contains("4097") && message.contains("4096"), "{message}");
}

#[test]
fn a_part_beyond_the_table_is_refused() {
    let mut line = Line::open(&gpt2(), &LineConfig::default());
    let mut at = |pos: u32, n: u32| {
        let tokens = (1..=n).collect();
        let part = SeqPart { slot: SlotId(0), pos, tokens, want: Want::Logits, mu: None };
        let ub = UBatch { id: 0, ops: Vec::new(), parts: vec![part] };
        line.stages()[0].forward(&ub, None).unwrap_err()
    };
    for (pos, n) in [(LEARNED, 1), (LEARNED - 3, 4), (u32::MAX, 1)] {
        let wanted = BatchError::NoSuchPosition { slot: SlotId(0), n_positions: LEARNED };
        assert_eq!(at(pos, n), wanted);
    }
    // What the table has is refused for another reason: nobody opened the slot.
    assert_eq!(at(LEARNED - 3, 3), BatchError::NotOpen(SlotId(0)));
}

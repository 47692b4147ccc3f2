//! Memory that a loaded stage holds: its packed weights and its states, and no second copy of the file. This is a test
//! program of its own, because it measures its process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use brigade_engine::device::Device;
use brigade_engine::kernels::{KvType, select};
use brigade_engine::stage::{Stage, StageConfig};
use brigade_gguf::Gguf;
use brigade_synth::{Arch, FileType, Shape, Spec};

/// For everything that is neither weights nor states: code, vectors, the allocator's reserves, pages
/// that the system maps around those of the header.
const MARGIN_BYTES: u64 = 32 << 20;

/// Bytes of this process that are in memory, its own and those of mapped files; `None` off Linux.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    Some((kib("RssAnon:")? + kib("RssFile:")?) << 10)
}

#[test]
fn a_loaded_stage_holds_its_weights_once() {
    if resident_bytes().is_none() {
        println!("skipped: this system does not say what a process holds");
        return;
    }
    let shape = Shape { n_layer: 3, n_ff: 24 << 10, tied: false, ..Shape::named("tiny").unwrap() };
    let (n_layer, arch) = (shape.n_layer, Arch::named("llama").unwrap());
    let path = std::env::temp_dir().join(format!("brigade-resident-{}.gguf", std::process::id()));
    let spec = Spec { arch, shape, quant: FileType::F16, seed: 1, header_only: false };
    brigade_synth::write(&spec, &path).unwrap();

    let before = resident_bytes().unwrap();
    let model = Arc::new(Gguf::open(&path).unwrap());
    let config = StageConfig {
        n_slots: 1,
        n_blocks: 4,
        kv_type: KvType::F16,
        n_ctx: 256,
        max_rows: 64,
        windows: false,
        control_vectors: None,
        host_experts: 0,
        own_drafts: false,
    };
    let device = Device::cpu(select(None).unwrap(), 1, None).unwrap();
    let stage = Stage::load(
        &brigade_models::described(&model).unwrap(),
        model.clone(),
        0..n_layer,
        config,
        device,
        &mut |_| (),
    )
    .unwrap();
    let held = resident_bytes().unwrap().saturating_sub(before);
    std::fs::remove_file(&path).unwrap();

    let facts = stage.facts();
    let wanted = facts.weight_bytes + facts.state_bytes;
    println!(
        "{held} bytes held for {} of weights, {} of states",
        facts.weight_bytes, facts.state_bytes
    );
    assert!(facts.weight_bytes > 2 * MARGIN_BYTES, "too small a model to tell");
    assert!(held <= wanted + MARGIN_BYTES, "{held} bytes held, {wanted} are weights and states");
}

//! Sizes of states and caches that brigade plans for known models, beside those that follow from the models' published
//! configurations.

use std::fs::File;

use brigade_engine::kernels::KvType;
use brigade_gguf::{Gguf, GgufWriter};
use brigade_plan::{ModelFacts, SequenceBytes};
use brigade_quant::GgmlType;
use brigade_spec::StateSpec;
use brigade_tests::process::run;
use serde_json::Value;

const F32: u64 = 4;

/// A header with the keys `<arch>.<key>` and an embedding.
fn header(arch: &str, n_embd: usize, keys: &[(&str, u32)], kv_heads: &[u32]) -> Gguf {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", arch).unwrap();
    let key = |key: &str| format!("{arch}.{key}");
    writer.set(&key("embedding_length"), &(n_embd as u32)).unwrap();
    writer.set(&key("attention.layer_norm_rms_epsilon"), &1e-5_f32).unwrap();
    for (name, value) in keys {
        writer.set(&key(name), value).unwrap();
    }
    if !kv_heads.is_empty() {
        writer.set(&key("block_count"), &(kv_heads.len() as u32)).unwrap();
        writer.set(&key("attention.head_count_kv"), kv_heads).unwrap();
    }
    writer.tensor("token_embd.weight", GgmlType::F16, &[n_embd, 32]).unwrap();
    writer.tensor("output.weight", GgmlType::F16, &[n_embd, 32]).unwrap();
    let name = format!("brigade-sizes-{}-{arch}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    writer.write_header_only(&mut File::create(&path).unwrap()).unwrap();
    let model = Gguf::open_header_only(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    model
}

/// State of each layer that has one of a fixed size, and what a sequence takes of all layers.
fn states(model: &Gguf) -> (Vec<StateSpec>, SequenceBytes) {
    let spec = brigade_models::describe(model).unwrap();
    let states = spec.layers.iter().flat_map(|l| &l.blocks).map(|block| block.kind.state());
    let slots = states.filter(|state| matches!(state, StateSpec::Slot { .. })).collect();
    let facts = ModelFacts::from_gguf(model, KvType::F16).unwrap();
    (slots, SequenceBytes::of(&facts.layers, false))
}

/// Bytes that a token adds with a KV cache of type `ty`.
fn kv_bytes(model: &Gguf, ty: KvType) -> u64 {
    let facts = ModelFacts::from_gguf(model, ty).unwrap();
    SequenceBytes::of(&facts.layers, false).kv_bytes_per_token
}

fn granite_4_h_tiny() {
    let kv_heads: Vec<u32> = (0..40).map(|il| if il % 10 == 5 { 4 } else { 0 }).collect();
    let keys = [
        ("context_length", 131_072),
        ("feed_forward_length", 512),
        ("attention.head_count", 12),
        ("expert_count", 64),
        ("expert_used_count", 6),
        ("expert_shared_feed_forward_length", 1024),
        ("rope.dimension_count", 128),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 128),
        ("ssm.group_count", 1),
        ("ssm.inner_size", 3072),
        ("ssm.time_step_rank", 48),
    ];
    let model = header("granitehybrid", 1536, &keys, &kv_heads);
    let (slots, sequence) = states(&model);
    // Three inputs of the inner width and of two groups' states; 48 heads with states of 64 by 128.
    let (conv, scan) = (3 * (3072 + 2 * 128), 48 * 64 * 128);
    assert_eq!(slots, [StateSpec::Slot { conv, scan }; 36]);
    assert_eq!(sequence.conv_bytes, 36 * conv as u64 * F32);
    assert_eq!(sequence.scan_bytes, 36 * scan as u64 * F32);
    // Keys and values of four heads of 128 in four layers.
    assert_eq!(sequence.kv_bytes_per_token, 4 * 2 * 4 * 128 * 2);
    // Each 32 elements have a scale of two bytes beside them.
    assert_eq!(kv_bytes(&model, KvType::Q8_0), 4 * 2 * 4 * (128 + 128 / 32 * 2));
}

fn mamba_1_4b() {
    let keys = [
        ("block_count", 48),
        ("context_length", 1_048_576),
        ("feed_forward_length", 0),
        ("attention.head_count", 0),
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 4096),
        ("ssm.state_size", 16),
        ("ssm.time_step_rank", 128),
    ];
    let (slots, sequence) = states(&header("mamba", 2048, &keys, &[]));
    // Three inputs of the inner width; 16 values for each of its channels.
    let (conv, scan) = (3 * 4096, 16 * 4096);
    assert_eq!(slots, [StateSpec::Slot { conv, scan }; 48]);
    assert_eq!(sequence.conv_bytes, 48 * conv as u64 * F32);
    assert_eq!(sequence.scan_bytes, 48 * scan as u64 * F32);
    assert_eq!(sequence.kv_bytes_per_token, 0);
}

fn kimi_linear_48b() {
    let kv_heads: Vec<u32> = (0..27).map(|il| u32::from(il % 4 == 3 || il == 26)).collect();
    let keys = [
        ("context_length", 1_048_576),
        ("feed_forward_length", 9216),
        ("attention.head_count", 32),
        ("attention.key_length", 576),
        ("attention.value_length", 512),
        ("attention.key_length_mla", 192),
        ("attention.value_length_mla", 128),
        ("attention.kv_lora_rank", 512),
        ("rope.dimension_count", 64),
        ("ssm.conv_kernel", 4),
        ("kda.head_dim", 128),
        ("leading_dense_block_count", 1),
        ("expert_count", 256),
        ("expert_used_count", 8),
        ("expert_feed_forward_length", 1024),
        ("expert_shared_count", 1),
        ("expert_gating_func", 2),
    ];
    let model = header("kimi-linear", 2304, &keys, &kv_heads);
    let (slots, sequence) = states(&model);
    // Three inputs each of queries, keys and values of 32 heads of 128; states of 128 by 128.
    let (conv, scan) = (3 * 3 * 32 * 128, 32 * 128 * 128);
    assert_eq!(slots, [StateSpec::Slot { conv, scan }; 20]);
    assert_eq!(sequence.conv_bytes + sequence.scan_bytes, 20 * (conv + scan) as u64 * F32);
    // One row of 576 values in each of seven layers.
    assert_eq!(sequence.kv_bytes_per_token, 7 * 576 * 2);
    assert_eq!(kv_bytes(&model, KvType::Q8_0), 7 * (576 + 576 / 32 * 2));
}

/// Three dense layers, then an index with one key for all heads.
fn minimax_m3_428b() {
    let keys = [
        ("context_length", 1_048_576),
        ("feed_forward_length", 12_288),
        ("attention.head_count", 64),
        ("attention.key_length", 128),
        ("attention.value_length", 128),
        ("attention.indexer.head_count", 4),
        ("attention.indexer.key_length", 128),
        ("attention.indexer.block_size", 128),
        ("attention.indexer.top_k", 16),
        ("attention.indexer.local_blocks", 1),
        ("rope.dimension_count", 64),
        ("leading_dense_block_count", 3),
        ("expert_count", 128),
        ("expert_used_count", 4),
        ("expert_feed_forward_length", 3072),
        ("expert_shared_count", 1),
        ("expert_gating_func", 2),
    ];
    let model = header("minimax-m3", 6144, &keys, &[4; 60]);
    let (slots, sequence) = states(&model);
    assert!(slots.is_empty());
    // Keys and values of four heads in all layers, and a key of the index in all but the dense ones.
    assert_eq!(sequence.kv_bytes_per_token, 60 * 4 * 2 * 128 * 2 + 57 * 128 * 2);
    let q8 = |n: u64| n + n / 32 * 2;
    assert_eq!(kv_bytes(&model, KvType::Q8_0), 60 * 4 * 2 * q8(128) + 57 * q8(128));
}

fn json_of(args: &[&str]) -> Value {
    let output = run(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The widths of mamba-1.4b, with 16 layers.
fn inspect_and_plan_say_it_layer_by_layer_and_in_all() {
    let folder = std::env::temp_dir();
    let path = folder.join(format!("brigade-sizes-{}.gguf", std::process::id()));
    let cluster = path.with_extension("toml");
    let model = path.to_str().unwrap();
    json_of(&[
        "synth",
        "--arch",
        "mamba",
        "--size",
        "1b",
        "--header-only",
        "--json",
        "--force",
        "--out",
        model,
    ]);
    let machines =
        "[[worker]]\nname = \"w\"\nmemory = \"8G\"\ngbps = 20.0\ngops = 500.0\ncount = 2\n";
    std::fs::write(&cluster, machines).unwrap();
    let inspected = json_of(&["inspect", model, "--json"]);
    let planned = json_of(&["plan", "-m", model, "--cluster", cluster.to_str().unwrap(), "--json"]);
    let tables = [
        run(&["inspect", model]),
        run(&["plan", "-m", model, "--cluster", cluster.to_str().unwrap()]),
    ];
    std::fs::remove_file(&path).unwrap();
    std::fs::remove_file(&cluster).unwrap();

    let (conv, scan) = (12_288 * F32, 65_536 * F32);
    for layer in inspected["layers"].as_array().unwrap() {
        assert_eq!((&layer["conv_bytes"], &layer["scan_bytes"]), (&conv.into(), &scan.into()));
    }
    assert_eq!(inspected["conv_bytes_per_sequence"], 16 * conv);
    assert_eq!(inspected["scan_bytes_per_sequence"], 16 * scan);
    assert_eq!(inspected["state_bytes_per_sequence"], 16 * (conv + scan));
    assert_eq!(inspected["kv_bytes_per_token"], 0);
    assert_eq!(planned["sequence"]["conv_bytes"], 16 * conv);
    assert_eq!(planned["sequence"]["scan_bytes"], 16 * scan);
    let of_stages = planned["stages"].as_array().unwrap().iter().map(|s| &s["sequence"]);
    assert_eq!(of_stages.map(|s| s["scan_bytes"].as_u64().unwrap()).sum::<u64>(), 16 * scan);
    for table in tables {
        let text = String::from_utf8(table.stdout).unwrap();
        assert!(
            text.contains("conv state 768.00 KiB and scan state 4.00 MiB a sequence"),
            "{text}"
        );
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        granite_4_h_tiny,
        mamba_1_4b,
        kimi_linear_48b,
        minimax_m3_428b,
        inspect_and_plan_say_it_layer_by_layer_and_in_all;
];

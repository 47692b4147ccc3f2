//! Whole models on a GPU: the bits of the kernel table `unfused`, wherever a line is cut, alone and beside CPU workers.
//! Machines without a Vulkan driver skip. With fast math the bits are others: that is measured.

use std::path::{Path, PathBuf};
use std::sync::Mutex;

use brigade_engine::batch::{SamplerSetup, SamplingParams, SeqPart, SlotId, Want};
use brigade_engine::device::{DeviceClass, DeviceName, DeviceOptions, Devices, gpus};
use brigade_engine::kernels::{NUMERICS_PAIRS, NUMERICS_UNFUSED, fast};
use brigade_gguf::Gguf;
use brigade_model_tests::each::each;
use brigade_model_tests::golden::{Golden, Recipe, argmax, relative_error, same_bits};
use brigade_model_tests::line::{self, Line, LineConfig};
use brigade_synth::{AdapterSpec, write_adapter};

/// Table with the bits that a GPU has to compute.
const UNFUSED: &str = "unfused";

/// Rows of a ubatch.
const N_UBATCH: usize = 37;

fn no_gpu() -> bool {
    let reason = gpus().err();
    if let Some(reason) = &reason {
        println!("skipped: {reason}");
    }
    reason.is_some()
}

/// Models that have each kind of block between them. A driver in software compiles a model's kernels for seconds, so by day
/// these are run there; a GPU and a night (`BRIGADE_TEST_ALL_PAIRS`) have all.
const EACH_KIND: [&str; 55] = [
    "apertus",
    "arctic",
    "arwkv7",
    "bailingmoe3",
    "bitnet",
    "bloom",
    "chameleon",
    "cogvlm",
    "command-r",
    "deepseek2",
    "deepseek2-ocr",
    "deepseek32",
    "deepseek4",
    "dots3note",
    "falcon",
    "falcon-h1",
    "gemma2",
    "gemma3n",
    "gemma4-moe",
    "glm5-next",
    "gpt-oss-mxfp4",
    "gpt2",
    "granitehybrid",
    "graniteswitch",
    "grok",
    "grovemoe",
    "hrm_text",
    "hy_v4",
    "kimi-k3",
    "kimi-linear",
    "lfm2",
    "llama",
    "llama-bf16",
    "llama-f16",
    "llama-q4_k",
    "llama-q6_k",
    "llama4",
    "mamba",
    "mamba2-4-groups",
    "minimax-01",
    "minimax-m3",
    "mpt-learned",
    "muse-glimmer",
    "nemotron_h_moe",
    "openelm",
    "plamo2",
    "qwen2moe",
    "qwen3next",
    "qwen3vl",
    "qwen4exp",
    "rwkv6",
    "rwkv7",
    "smallthinker",
    "step35",
    "talkie",
];

/// Whether a model is run here and now.
fn is_run(name: &str) -> bool {
    let gpus = gpus().unwrap_or_default();
    let is_slow = gpus.first().is_some_and(|gpu| gpu.class == DeviceClass::Software);
    let all = !is_slow || std::env::var_os("BRIGADE_TEST_ALL_PAIRS").is_some();
    all || EACH_KIND.contains(&name)
}

fn golden_models_are_the_bits_of_unfused_on_a_gpu_and_mixed() {
    if no_gpu() {
        return;
    }
    let (mut checked, differ) = (0, Mutex::new(Vec::new()));
    for golden in Golden::folders() {
        let models: Vec<_> = golden.models().filter(|(name, _)| is_run(name)).collect();
        each(&models, |(name, entry)| {
            let path = golden.model(entry);
            let tokens = &golden.manifest.tokens;
            let logits = |config: &LineConfig, n_ubatch: usize| -> Vec<u32> {
                let rows = Line::open(&path, config).logits(tokens, n_ubatch);
                rows.into_iter().flatten().map(f32::to_bits).collect()
            };
            let alone = |table| LineConfig { kernels: Some(table), ..LineConfig::default() };
            let want = logits(&alone(UNFUSED), tokens.len());
            let n_layer = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap().n_layer();
            let mixed = LineConfig {
                cuts: Line::even_cuts(n_layer, 2),
                mixed: vec![UNFUSED, "vulkan:0"],
                // Once as memory that both see, once as a card's own.
                apart: true,
                ..LineConfig::default()
            };
            let on_gpu = logits(&alone("vulkan:0"), N_UBATCH) == want;
            let in_line = logits(&mixed, N_UBATCH) == want;
            if !(on_gpu && in_line) {
                let of = format!("{name} (alone {on_gpu}, mixed {in_line})");
                differ.lock().unwrap().push(of);
            }
        });
        checked += models.len();
    }
    let differ = differ.into_inner().unwrap();
    println!("{checked} models on the GPU, {} of other bits", differ.len());
    assert!(checked > 0, "no model was run: BRIGADE_TEST_ALL_PAIRS=1 has all of them");
    assert!(differ.is_empty(), "other bits than {UNFUSED}: {}", differ.join(", "));
}

/// An adapter of random values for the model at `path`.
fn adapter(path: &Path, name: &str, seed: u64) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gpu-{name}-{seed}.gguf"));
    let spec = AdapterSpec { rank: 5, alpha: 8.0, seed };
    write_adapter(&Gguf::open(path).unwrap(), &spec, &file).unwrap();
    file
}

/// Adapters of each sequence in one ubatch: experts have adapters for some of their rows alone.
const USES: [&[(u32, f32)]; 4] = [&[], &[(0, 1.0)], &[(1, 0.5), (0, 2.0)], &[(1, 0.5)]];

fn adapters_of_experts_are_the_bits_of_unfused_on_a_gpu() {
    if no_gpu() {
        return;
    }
    let golden = Golden::repository();
    for name in ["qwen2moe", "deepseek2", "gemma4-moe"] {
        let path = golden.named(name);
        let adapters = vec![adapter(&path, name, 1), adapter(&path, name, 2)];
        let part = |slot: u32, tokens: &[u32]| SeqPart {
            slot: SlotId(slot),
            pos: 0,
            tokens: tokens.to_vec(),
            want: Want::Logits,
            mu: None,
            ahead: None,
        };
        let logits = |table, is_adapted: bool, host_experts: u32| -> Vec<u32> {
            let adapters = adapters.clone();
            let kernels = Some(table);
            let config = LineConfig { kernels, adapters, host_experts, ..LineConfig::default() };
            let slots = || (0..).zip(USES);
            let mut ops: Vec<_> = slots().map(|(slot, _)| Line::open_slot(slot, None)).collect();
            let adapted = slots().filter(|(_, uses)| is_adapted && !uses.is_empty());
            ops.extend(adapted.map(|(slot, uses)| Line::adapt(slot, uses)));
            // The last sequence has one row.
            let tokens = [0..9, 9..23, 3..8, 5..6].map(|some| &golden.manifest.tokens[some]);
            let parts = slots().zip(tokens).map(|((slot, _), tokens)| part(slot, tokens)).collect();
            let rows = Line::open(&path, &config).run(ops, parts);
            rows.into_iter().flat_map(line::into_logits).map(f32::to_bits).collect()
        };
        let want = logits(UNFUSED, true, 0);
        assert!(want != logits(UNFUSED, false, 0), "{name}: the adapters change nothing");
        assert!(logits("vulkan:0", true, 0) == want, "{name}: other bits than {UNFUSED}");
        assert!(logits("vulkan:0", true, u32::MAX) == want, "{name}: other bits beside the GPU");
    }
}

/// Tokens that are drawn of the few logits that a GPU finds are those that are drawn of all.
fn tokens_drawn_of_few_logits_are_those_of_unfused() {
    if no_gpu() {
        return;
    }
    let golden = Golden::repository();
    for name in ["llama", "chameleon"] {
        let path = golden.model(&golden.manifest.models[name]);
        let tokens = |table| -> Vec<u32> {
            let config = LineConfig { kernels: Some(table), ..LineConfig::default() };
            let mut line = Line::open(&path, &config);
            // Two sequences of other settings share the ubatches, one of them greedy.
            let params = SamplingParams { top_k: 9, temperature: 1.5, ..SamplingParams::default() };
            let drawn = SamplerSetup { params, seed: 3, top_logprobs: None, ..Line::greedy() };
            let mut ops =
                vec![Line::open_slot(0, Some(drawn)), Line::open_slot(1, Some(Line::greedy()))];
            let mut next =
                [golden.manifest.greedy_prompt.clone(), golden.manifest.greedy_prompt.clone()];
            let (mut pos, mut all) = (0, Vec::new());
            for _ in 0..20 {
                let part = |slot: u32| SeqPart {
                    slot: SlotId(slot),
                    pos,
                    tokens: next[slot as usize].clone(),
                    want: Want::Sample,
                    mu: None,
                    ahead: None,
                };
                let rows = line.run(std::mem::take(&mut ops), [0, 1].map(part).into());
                pos += next[0].len() as u32;
                let ids: Vec<u32> = rows.into_iter().map(|row| line::into_token(row).id).collect();
                next = [vec![ids[0]], vec![ids[1]]];
                all.extend(ids);
            }
            all
        };
        assert_eq!(tokens("vulkan:0"), tokens(UNFUSED), "{name}");
    }
}

/// Tokens that a GPU finds, without logits, are those of the sampler; where logits are masked too.
fn greedy_tokens_are_those_of_unfused() {
    if no_gpu() {
        return;
    }
    let golden = Golden::repository();
    for name in ["llama", "chameleon", "gemma2"] {
        let path = golden.model(&golden.manifest.models[name]);
        let tokens = |table| {
            let config = LineConfig { kernels: Some(table), ..LineConfig::default() };
            Line::open(&path, &config).generate(&golden.manifest.greedy_prompt, 24, 7)
        };
        assert_eq!(tokens("vulkan:0"), tokens(UNFUSED), "{name}");
    }
}

/// Bound on the difference from llama.cpp's logits, which itself reads rows in 8 bits; as in `golden.rs`.
const QUANT_LIMIT: f64 = 3e-2;

/// A device without matrix units for f16 has no fast math, and a line says so.
fn no_fast_math() -> bool {
    let found = gpus().unwrap_or_default();
    let has = found.first().is_some_and(|facts| facts.units.f16);
    if !has {
        println!("skipped: the first GPU has no f16 matrix units");
    }
    !has
}

/// Errors of default and of fast math beside each other: ||ours - theirs||² / ||theirs||² against llama.cpp's logits.
fn golden_models_with_fast_math_are_as_near_as_without() {
    if no_fast_math() {
        return;
    }
    let golden = Golden::repository();
    for name in ["llama-q4_k", "llama-q6_k", "gpt-oss-mxfp4"] {
        let entry = &golden.manifest.models[name];
        let (path, tokens) = (golden.model(entry), &golden.manifest.tokens);
        let logits = |fast_math| {
            let config =
                LineConfig { kernels: Some("vulkan:0"), fast_math, ..LineConfig::default() };
            Line::open(&path, &config).logits(tokens, tokens.len())
        };
        let (exact, fast) = (logits(false), logits(true));
        assert!(!same_bits(&exact, &fast), "{name}: the f16 units compute nothing");
        let errors = [&exact, &fast].map(|logits| relative_error(&golden, entry, logits));
        let n = entry.argmax.len();
        let equal = (0..n).filter(|&i| argmax(&fast[i]) == entry.argmax[i]).count();
        println!(
            "{name:14} default {:.1e}, fast math {:.1e}, argmax {equal}/{n}",
            errors[0].powi(2),
            errors[1].powi(2)
        );
        assert!(errors.iter().all(|error| *error <= QUANT_LIMIT), "{name}: {errors:?}");
        assert!(equal * 10 >= n * 9, "{name}: argmax {equal}/{n}");
    }
}

/// Fast math is a class of its own, to the planner and for states.
fn fast_math_has_numerics_of_its_own() {
    if no_fast_math() {
        return;
    }
    let gpu: DeviceName = "vulkan:0".parse().unwrap();
    let devices = |fast_math| Devices::new(DeviceOptions { fast_math, ..DeviceOptions::default() });
    let number = |fast_math| devices(fast_math).numerics(&gpu).unwrap();
    assert_eq!(number(false), NUMERICS_UNFUSED);
    let fast = number(true);
    assert!(fast != NUMERICS_UNFUSED && fast == number(true), "{fast}");
    let path = Golden::repository().named("llama");
    let kind = |fast_math| {
        let config = LineConfig { kernels: Some("vulkan:0"), fast_math, ..LineConfig::default() };
        Line::open(&path, &config).stages()[0].copy_kind()
    };
    assert_ne!(kind(false), kind(true), "copies of states");
}

fn a_cpu_has_fast_math_with_bf16_and_says_so_without() {
    let devices = Devices::new(DeviceOptions { fast_math: true, ..DeviceOptions::default() });
    let refusal = |table: Option<&str>| {
        let name = DeviceName::Cpu(table.map(str::to_owned));
        let refused = devices.check(&name).err().map(|error| error.to_string());
        refused.inspect(|text| assert!(text.contains("without --fast-math"), "{text}"))
    };
    assert!(refusal(Some("reference")).is_some(), "another table");
    let Some(fast) = fast() else {
        assert!(refusal(None).is_some(), "no such instructions");
        return;
    };
    assert_eq!([refusal(None), refusal(Some(fast.name))], [None, None]);
    let cpu = DeviceName::Cpu(None);
    assert_eq!(devices.called(&cpu).unwrap(), fast.name);
    assert_eq!(devices.numerics(&cpu).unwrap(), NUMERICS_PAIRS);

    let [arch, size, quant] = ["llama", "tiny", "F16"].map(str::to_owned);
    let fnv1a = "b63566a9d739173f".to_owned();
    let path = Recipe { arch, size, seed: 0, quant, fnv1a }.make();
    let tokens = &Golden::repository().manifest.tokens;
    let line = |fast_math| {
        let cpu = if fast_math { fast.name } else { "reference" };
        Line::open(&path, &LineConfig { kernels: Some(cpu), fast_math, ..LineConfig::default() })
    };
    let [exact, pairs] = [false, true].map(|fast| line(fast).logits(tokens, tokens.len()).concat());
    let squares =
        |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v * v)).sum::<f64>();
    let off = squares(&mut exact.iter().zip(&pairs).map(|(a, b)| a - b));
    let error = (off / squares(&mut exact.iter().copied())).sqrt();
    println!("llama in F16 with pairs of bfloat16: logits are {error:.1e} off");
    assert!(error > 0.0 && error < 2e-2, "{error:.1e}");
    let kinds = [false, true].map(|fast| line(fast).stages()[0].copy_kind());
    assert_ne!(kinds[0], kinds[1], "copies of states");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        golden_models_are_the_bits_of_unfused_on_a_gpu_and_mixed,
        adapters_of_experts_are_the_bits_of_unfused_on_a_gpu,
        tokens_drawn_of_few_logits_are_those_of_unfused,
        greedy_tokens_are_those_of_unfused,
        golden_models_with_fast_math_are_as_near_as_without,
        fast_math_has_numerics_of_its_own,
        a_cpu_has_fast_math_with_bf16_and_says_so_without;
];

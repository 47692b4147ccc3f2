//! The host's waits and records in a forward pass on a GPU. It waits once, for what leaves the stage; where it needs to
//! look at something to go on, it waits for that. And it records nothing that was recorded for a pass before. Machines
//! without a Vulkan driver skip.

use std::path::{Path, PathBuf};

use brigade_engine::batch::{SeqOp, SeqPart, SlotId, Want};
use brigade_engine::device::{Visits, gpus};
use brigade_gguf::Gguf;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{Line, LineConfig};
use brigade_synth::{AdapterSpec, write_adapter};

/// Models, and how often the host waits at most: some of each kind of block and of residual.
const AT_MOST: [(&str, u64); 34] = [
    ("apertus", 1),
    ("arwkv7", 1),
    ("bitnet", 1),
    ("chameleon", 1),
    ("cogvlm", 1),
    ("cohere2", 1),
    ("deci", 1),
    ("deepseek4", 1),
    ("exaone4", 1),
    ("falcon-h1", 1),
    ("gemma3n", 1),
    ("gemma4-small", 1),
    ("gpt2", 1),
    ("granitehybrid", 1),
    ("hrm_text", 1),
    ("jais2", 1),
    ("kimi-k3", 1),
    ("kimi-linear", 1),
    ("lfm2", 1),
    ("llama", 1),
    ("mamba", 1),
    ("mamba2", 1),
    ("minicpm3", 1),
    ("mpt", 1),
    ("nemotron_h", 1),
    ("plamo2", 1),
    ("qwen35", 1),
    ("qwen3next", 1),
    ("qwen4exp", 1),
    ("rwkv6", 1),
    ("rwkv6qwen2", 1),
    ("rwkv7", 1),
    ("talkie", 1),
    ("graniteswitch", 1),
];

/// Models whose steps of decode differ: every so many positions one makes an entry; adapters that tokens switch on are other work.
const DIFFERENT: [&str; 2] = ["deepseek4", "graniteswitch"];

/// Rows of a prompt's ubatch.
const N_ROWS: usize = 20;

/// Mixtures of experts, which wait no more often where experts have adapters.
const ADAPTED: [&str; 2] = ["qwen2moe", "gemma4-moe"];

/// Number of the host's waits in a pass over a prompt's rows, and in one over a single row. Both were run before. All
/// use the first adapter of the model if it has some.
fn waits(line: &mut Line, tokens: &[u32], is_adapted: bool) -> [u64; 2] {
    let mut pos = 0;
    let mut run = |line: &mut Line, ops: Vec<SeqOp>, n: usize, want: Want| {
        let (slot, tokens) = (SlotId(0), tokens[..n].to_vec());
        // Stages in one process share the device.
        let before = line.stages()[0].n_waits();
        line.run(ops, vec![SeqPart { slot, pos, tokens, want, mu: None, ahead: None }]);
        pos += n as u32;
        line.stages()[0].n_waits() - before
    };
    let mut open = vec![Line::open_slot(0, Some(Line::greedy()))];
    open.extend(is_adapted.then(|| Line::adapt(0, &[(0, 1.0)])));
    run(line, open, N_ROWS, Want::Logits);
    run(line, Vec::new(), 1, Want::Sample);
    [run(line, Vec::new(), N_ROWS, Want::Logits), run(line, Vec::new(), 1, Want::Sample)]
}

/// Both look at counts of the one device: they are one test, so that no other test uses it meanwhile.
fn the_host_waits_once_in_a_pass_and_records_it_once() {
    if let Err(reason) = gpus() {
        println!("skipped: {reason}");
        return;
    }
    let golden = Golden::repository();
    kernels_are_compiled_before_they_are_used(&golden);
    the_host_waits_once(&golden);
    decode_is_recorded_once(&golden);
}

/// Models that are rehearsed: of each kind of mixer, and one whose later stage is told by rows what to do.
const REHEARSED: [&str; 6] =
    ["granitehybrid", "graniteswitch", "kimi-linear", "llama", "qwen2moe", "rwkv7"];

/// Mixtures whose experts lie with the host: some visit the device, or have copies there.
const BESIDE: [(&str, Visits, u64); 3] = [
    ("gpt-oss-mxfp4", Visits::From(1), 0),
    ("qwen3vlmoe", Visits::Never, 1 << 20),
    ("grovemoe", Visits::From(2), 1 << 20),
];

/// A rehearsal finds all kernels of prompts and of decode, and changes nothing that is computed later.
fn kernels_are_compiled_before_they_are_used(golden: &Golden) {
    let tokens = &golden.manifest.tokens;
    let here = REHEARSED.map(|name| (name, LineConfig::default()));
    let beside = BESIDE.map(|(name, visits, copies)| {
        (name, LineConfig { host_experts: u32::MAX, visits, copies, ..LineConfig::default() })
    });
    for (name, config) in beside.into_iter().chain(here) {
        let path = golden.model(&golden.manifest.models[name]);
        let n_layer = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap().n_layer();
        let cuts = Line::even_cuts(n_layer, 2);
        let config = |kernels| LineConfig { cuts: cuts.clone(), kernels, ..config.clone() };
        let mut line = Line::open(&path, &config(Some("vulkan:0")));
        let found: Vec<_> =
            line.stages().iter_mut().map(|stage| stage.rehearse().unwrap()).collect();
        let before = line.stages()[0].n_kernels();
        let bits = |rows: Vec<Vec<f32>>| -> Vec<u32> {
            rows.into_iter().flatten().map(f32::to_bits).collect()
        };
        let logits = bits(line.logits(tokens, 37));
        let generated = line.generate(tokens, 4, 37);
        let missed = line.stages()[0].n_kernels() - before;
        let counts = line.stages().iter().map(|stage| stage.expert_counts()).map(|counts| {
            let sent = counts.sent_bytes > 0 || counts.copy_rows > 0;
            (sent, counts.host_rows + counts.device_rows)
        });
        let counts: Vec<_> = counts.collect();
        println!(
            "{name}: {found:?} kernels compiled before, {missed} in a prompt and in decode; experts {counts:?}"
        );
        if config(None).host_experts > 0 {
            assert!(
                counts.iter().any(|(sent, _)| *sent),
                "{name}: experts were sent to the device"
            );
        }
        assert_eq!(missed, 0, "{name}: kernels that a rehearsal misses");
        let again: Vec<_> =
            line.stages().iter_mut().map(|stage| stage.rehearse().unwrap()).collect();
        assert_eq!(again, [0, 0], "{name}: kernels are compiled once");
        let mut unfused = Line::open(&path, &config(Some("unfused")));
        assert!(logits == bits(unfused.logits(tokens, 37)), "{name}: other bits after a rehearsal");
        assert_eq!(generated, unfused.generate(tokens, 4, 37), "{name}");
    }
}

/// An adapter of random values for the model at `path`.
fn adapter(path: &Path, name: &str) -> PathBuf {
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("waits-{name}.gguf"));
    let spec = AdapterSpec { rank: 5, alpha: 8.0, seed: 1 };
    write_adapter(&Gguf::open(path).unwrap(), &spec, &file).unwrap();
    file
}

fn the_host_waits_once(golden: &Golden) {
    let mut more = Vec::new();
    let adapted = ADAPTED.map(|name| (name, 1, true));
    let models = AT_MOST.map(|(name, at_most)| (name, at_most, false)).into_iter().chain(adapted);
    for (name, at_most, is_adapted) in models {
        let path = golden.model(&golden.manifest.models[name]);
        let adapters: Vec<_> = is_adapted.then(|| adapter(&path, name)).into_iter().collect();
        let n_layer = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap().n_layer();
        for cuts in [Vec::new(), Line::even_cuts(n_layer, 2)] {
            let at_most = at_most + cuts.len() as u64;
            let (kernels, adapters) = (Some("vulkan:0"), adapters.clone());
            let config = LineConfig { cuts, kernels, adapters, ..LineConfig::default() };
            let mut line = Line::open(&path, &config);
            let found = waits(&mut line, &golden.manifest.tokens, is_adapted);
            println!("{name}, {} cuts, adapted {is_adapted}: {found:?}", config.cuts.len());
            if found.iter().any(|found| !(1..=at_most).contains(found)) {
                more.push(format!("{name}: {found:?}, not {at_most}"));
            }
        }
    }
    assert!(more.is_empty(), "stages that wait for more than what leaves them: {more:#?}");
}

/// Steps of decode before which all memory has been taken once, and those that are looked at: within a page, and within what an
/// attention's workgroup takes.
const WARM: u32 = 6;
const STEPS: u32 = 10;

fn decode_is_recorded_once(golden: &Golden) {
    let mut more = Vec::new();
    for (name, _) in AT_MOST {
        let path = golden.model(&golden.manifest.models[name]);
        let config = LineConfig { kernels: Some("vulkan:0"), ..LineConfig::default() };
        let mut line = Line::open(&path, &config);
        let mut ops = vec![Line::open_slot(0, Some(Line::greedy()))];
        let (mut all, mut found, mut runs) = (0, 0, 0);
        for pos in 0..WARM + STEPS {
            let before = line.stages()[0].handed();
            let tokens = vec![golden.manifest.tokens[pos as usize]];
            let part =
                SeqPart { slot: SlotId(0), pos, tokens, want: Want::Sample, mu: None, ahead: None };
            line.run(std::mem::take(&mut ops), vec![part]);
            let after = line.stages()[0].handed();
            if pos >= WARM {
                all += after.batches - before.batches;
                found = found.max(after.recorded - before.recorded);
                runs = after.runs - before.runs;
            }
        }
        println!(
            "{name}: {runs} runs of kernels in a step, {all} batches in {STEPS} steps, {found} recorded in one at most"
        );
        assert!(all >= u64::from(STEPS), "{name}: nothing was handed over");
        if found > 0 && !DIFFERENT.contains(&name) {
            more.push(format!("{name}: {found}"));
        }
    }
    assert!(more.is_empty(), "steps of decode that were recorded again: {more:#?}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    alone: the_host_waits_once_in_a_pass_and_records_it_once;
];

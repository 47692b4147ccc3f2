//! Same bytes: logits and tokens do not depend on cuts, ubatch size, threads, neighbours in the batch, or
//! snapshots on the way.
//!
//! This holds bit for bit, on every op table that this machine has, or on the one that `BRIGADE_TEST_KERNELS`
//! names.

use std::ops::Range;
use std::path::PathBuf;

use brigade_engine::batch::{SeqOp, SeqPart, SlotId, Want};
use brigade_engine::device::DeviceName;
use brigade_engine::kernels::KvType;
use brigade_engine::stage::Stage;
use brigade_engine::state::{
    BlockCopy, BlockPart, BlockSource, CopyRoom, LayerPrint, StageCopy, Written,
};
use brigade_gguf::Gguf;
use brigade_model_tests::each::each;
use brigade_model_tests::golden::Golden;
use brigade_model_tests::line::{self, Line, LineConfig, into_logits, into_token};
use brigade_spec::ModelSpec;

/// Longer than a KV page, two ubatches of 512 and the 1,024 that powers of two would end at.
const PROMPT: usize = 1_150;
/// Longer than two pages, for the table that computes a number at a time.
const SHORT_PROMPT: usize = 150;

/// Models of the repository's golden folder. They have f32 weights and two quants, per-head norms and scales,
/// recurrent layers, latent attention with experts, rows kept over depth, and attention in chunks. Some have
/// windows: with sinks, or with two rotations and bounds. In some, blocks read a layer's input. Some have rows of
/// positions, slopes, or layers without attention. Some have gates of heads, bounded activations, norms inside blocks, or
/// embedded rows beside the stream. In two, some pairs of the rotated part stay as they are. In some, rows attend
/// to positions, or to blocks or pools of them, that an index chose; in one, to compressed positions. In one, a row
/// depends on the tokens before it as such. Two go through their layers more than once, one masks logits, and in one
/// tokens switch adapters.
const MODELS: [&str; 59] = [
    "llama",
    "qwen3",
    "granite",
    "llama-q4_k",
    "llama-q6_k",
    "mamba",
    "jamba",
    "lfm2",
    "granitehybrid",
    "falcon-h1",
    "deepseek2",
    "rwkv7",
    "qwen35",
    "qwen3next",
    "kimi-linear",
    "kimi-k3",
    "gpt-oss",
    "gemma2",
    "gemma3",
    "llama4",
    "arctic",
    "gpt2",
    "bloom",
    "mpt-learned",
    "deci",
    "minicpm3",
    "rwkv6",
    "arwkv7-plain",
    "plamo2",
    "mistral4",
    "laguna",
    "laguna-values",
    "step35",
    "talkie",
    "muse-glimmer",
    "bitnet",
    "apertus",
    "gemma4",
    "gemma4-moe",
    "gemma4-small",
    "gemma3n",
    "grovemoe",
    "smallthinker",
    "qwen3vl",
    "hunyuan_vl",
    "deepseek32",
    "glm-dsa",
    "minimax-01",
    "bailingmoe3",
    "hy_v4",
    "dots3note",
    "minimax-m3",
    "glm5-next",
    "deepseek4",
    "qwen4exp",
    "nanbeige",
    "hrm_text",
    "chameleon",
    "graniteswitch",
];

fn path(model: &str) -> PathBuf {
    Golden::repository().named(model)
}

fn describe(model: &str) -> ModelSpec {
    brigade_models::describe(&Gguf::open(path(model)).unwrap()).unwrap()
}

/// Token ids without a pattern, below the golden vocabularies' 288.
fn tokens(n: usize, seed: u64) -> Vec<u32> {
    let mut state = seed;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        3 + (state >> 33) as u32 % 280
    };
    (0..n).map(|_| next()).collect()
}

/// Tokens that a sequence has in all, and those before it is copied: more than two pages. Fewer on a GPU, which may be one in
/// software.
fn continued(seed: u64) -> (Vec<u32>, usize) {
    let (n, head) = match line::device_name() {
        DeviceName::Cpu(_) => (300, 170),
        DeviceName::Accelerator { .. } => (160, 135),
    };
    (tokens(n, seed), head)
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.iter().flatten().map(|x| x.to_bits()).collect()
}

/// Each model on each table: in one cut at each ubatch size. By day at one of the sizes, another on the next table and for
/// the next model, so that each pair of a table and a size has many models; at night (`BRIGADE_TEST_ALL_PAIRS`) at all.
fn cuts_ubatch_sizes_and_threads_do_not_change_a_bit() {
    let (prompt, all) = (tokens(PROMPT, 1), std::env::var_os("BRIGADE_TEST_ALL_PAIRS").is_some());
    let models: Vec<(usize, &str)> = MODELS.into_iter().enumerate().collect();
    each(&models, |&(number, model)| {
        let spec = describe(model);
        let n_layer = spec.n_layer();
        for (nth, table) in line::tables().into_iter().enumerate() {
            let config = LineConfig { kernels: Some(table.name), ..LineConfig::default() };
            let in_turn = |i: usize| all || (i + nth + number).is_multiple_of(4);
            let slow = table.name == "reference";
            let prompt = if slow { &prompt[..SHORT_PROMPT] } else { &prompt[..] };
            let whole = bits(&Line::open(&path(model), &config).logits(prompt, 512));
            assert_eq!(whole.len(), prompt.len() * spec.n_vocab);
            let cuts = [1, 2, 3, n_layer].map(|n| Line::even_cuts(n_layer, n));
            let sizes: &[usize] = if slow { &[64] } else { &[1, 7, 64, 512] };
            let tried: Vec<_> =
                sizes.iter().enumerate().filter(|(i, _)| slow || in_turn(*i)).collect();
            for &(i, n_ubatch) in &tried {
                let cuts = cuts[i % cuts.len()].clone();
                let threads = 1 + i % 2;
                let config = LineConfig { cuts, threads, ..config.clone() };
                let mut line = Line::open(&path(model), &config);
                let cut = bits(&line.logits(prompt, *n_ubatch));
                assert!(whole == cut, "{model} on {}: {config:?}, ubatch {n_ubatch}", table.name);
            }
            let (n, n_splits) = (prompt.len(), tried.len());
            println!("{model} on {}: {n} tokens, {n_splits} splits equal", table.name);
        }
    });
}

fn every_pair_of_cut_and_ubatch_size_gives_the_same_bits() {
    let prompt = tokens(PROMPT, 2);
    for (model, kv_type) in [
        ("llama", KvType::F32),
        ("llama", KvType::Q8_0),
        ("llama-q4_k", KvType::F32),
        ("granitehybrid", KvType::F32),
        ("granitehybrid", KvType::Q8_0),
        ("kimi-linear", KvType::F32),
        ("kimi-linear", KvType::Q8_0),
    ] {
        let n_layer = describe(model).n_layer();
        let serving = line::serving().name;
        let config = LineConfig { kv_type, ..LineConfig::default() };
        let whole = Line::open(&path(model), &config).logits(&prompt, PROMPT);
        let mut n_splits = 0;
        for n_stages in [1, 2, 3, n_layer] {
            let cuts = Line::even_cuts(n_layer, n_stages);
            let mut line = Line::open(&path(model), &LineConfig { cuts, ..config.clone() });
            for n_ubatch in [1, 7, 64, 512] {
                let cut = line.logits(&prompt, n_ubatch);
                assert!(
                    bits(&whole) == bits(&cut),
                    "{model}, KV {kv_type:?}: {n_stages} stages, {n_ubatch} rows"
                );
                n_splits += 1;
            }
        }
        println!("{model}, KV {kv_type:?} on {serving}: {PROMPT} tokens, {n_splits} splits equal");
    }
}

fn neighbours_in_the_batch_do_not_change_a_bit() {
    let lengths = [1_150, 3, 517, 64, 130];
    let cases = [
        ("llama", KvType::F32),
        ("llama-q4_k", KvType::F16),
        ("llama-q4_k", KvType::Q8_0),
        ("granitehybrid", KvType::F16),
        ("granitehybrid", KvType::Q8_0),
        ("falcon-h1", KvType::F32),
        ("deepseek2", KvType::F16),
        ("deepseek2", KvType::Q8_0),
        ("deepseek32", KvType::Q8_0),
        ("glm-dsa", KvType::F16),
        ("minimax-m3", KvType::F16),
        ("minimax-m3", KvType::Q8_0),
        ("kimi-linear", KvType::F16),
        ("kimi-k3", KvType::F16),
        ("gemma4-small", KvType::Q8_0),
        ("gemma3n", KvType::F16),
        ("hy_v4", KvType::F16),
        ("dots3note", KvType::Q8_0),
        ("glm5-next", KvType::Q8_0),
        ("deepseek4", KvType::F16),
        ("deepseek4", KvType::Q8_0),
        ("qwen35", KvType::F32),
        ("qwen4exp", KvType::F16),
        ("qwen4exp", KvType::Q8_0),
    ];
    for (model, kv_type) in cases {
        let config = LineConfig { kv_type, threads: 2, ..LineConfig::default() };
        let mut line = Line::open(&path(model), &config);
        let prompts: Vec<_> =
            (0..lengths.len()).map(|i| tokens(lengths[i], 10 + i as u64)).collect();
        let alone: Vec<_> = prompts.iter().map(|p| line.logits(p, 512)).collect();
        let alone_tokens: Vec<_> = prompts.iter().map(|p| line.generate(p, 8, 512)).collect();
        // All at once: chunks of unequal size, so that short prompts decode beside long prefills.
        let mut together = vec![Vec::new(); prompts.len()];
        let mut done = vec![0; prompts.len()];
        let mut step = 0;
        while done.iter().zip(lengths).any(|(d, n)| *d < n) {
            let ops = if step == 0 { open_all(lengths.len(), false) } else { Vec::new() };
            let mut parts = Vec::new();
            for (i, prompt) in prompts.iter().enumerate() {
                let chunk = (1 + (step * 37 + i * 101) % 150).min(lengths[i] - done[i]);
                if chunk > 0 {
                    let tokens = prompt[done[i]..done[i] + chunk].to_vec();
                    let (slot, pos) = (SlotId(i as u32), done[i] as u32);
                    parts.push(SeqPart {
                        slot,
                        pos,
                        tokens,
                        want: Want::Logits,
                        mu: None,
                        ahead: None,
                    });
                    done[i] += chunk;
                }
            }
            for row in line.run(ops, parts) {
                together[row.slot.0 as usize].push(into_logits(row));
            }
            step += 1;
        }
        for (i, rows) in together.iter().enumerate() {
            assert!(bits(rows) == bits(&alone[i]), "{model}: prompt {i} computed among others");
        }
        line.run((0..5).map(|i| SeqOp::Close { slot: SlotId(i) }).collect(), Vec::new());
        assert_eq!(generate_together(&mut line, &prompts, 8), alone_tokens, "{model}: tokens");
    }
}

fn open_all(n: usize, sample: bool) -> Vec<SeqOp> {
    (0..n as u32).map(|i| Line::open_slot(i, sample.then(Line::greedy))).collect()
}

/// Greedy tokens of all prompts at once, one ubatch a step.
fn generate_together(line: &mut Line, prompts: &[Vec<u32>], n: usize) -> Vec<Vec<u32>> {
    let part = |slot: usize, pos: usize, tokens: &[u32]| SeqPart {
        slot: SlotId(slot as u32),
        pos: pos as u32,
        tokens: tokens.to_vec(),
        want: Want::Sample,
        mu: None,
        ahead: None,
    };
    let parts = prompts.iter().enumerate().map(|(i, p)| part(i, 0, p)).collect();
    let mut rows = line.run(open_all(prompts.len(), true), parts);
    let mut out = vec![Vec::new(); prompts.len()];
    loop {
        for row in rows {
            out[row.slot.0 as usize].push(into_token(row).id);
        }
        if out[0].len() == n {
            return out;
        }
        let last = |o: &Vec<u32>| [o[o.len() - 1]];
        let parts = out.iter().enumerate();
        let parts = parts.map(|(i, o)| part(i, prompts[i].len() + o.len() - 1, &last(o)));
        rows = line.run(Vec::new(), parts.collect());
    }
}

fn copies_and_snapshots_continue_with_the_same_bits() {
    let (prompt, head) = continued(3);
    let (head, tail) = prompt.split_at(head);
    for (model, kv_type) in [
        ("llama", KvType::F32),
        ("llama", KvType::F16),
        ("llama", KvType::Q8_0),
        ("deepseek2", KvType::F32),
        ("deepseek2", KvType::F16),
        ("deepseek2", KvType::Q8_0),
        ("glm-dsa", KvType::F16),
        ("glm-dsa", KvType::Q8_0),
        ("hy_v4", KvType::Q8_0),
        ("minimax-m3", KvType::F32),
        ("minimax-m3", KvType::F16),
        ("minimax-m3", KvType::Q8_0),
    ] {
        let cuts = vec![2];
        let mut line =
            Line::open(&path(model), &LineConfig { kv_type, cuts, ..LineConfig::default() });
        let whole = line.logits(&prompt, 512);
        let part = |slot, pos: usize, tokens: &[u32]| SeqPart {
            slot: SlotId(slot),
            pos: pos as u32,
            tokens: tokens.to_vec(),
            want: Want::Logits,
            mu: None,
            ahead: None,
        };
        line.run(vec![Line::open_slot(0, None)], vec![part(0, 0, head)]);
        // A copy, made shorter than what it was copied from.
        let SeqOp::Open { blocks, .. } = Line::open_slot(1, None) else { unreachable!() };
        let (src, dst, request) = (SlotId(0), SlotId(1), "copy".into());
        let copy = SeqOp::Copy { src, dst, len: 100, blocks, sampler: None, request };
        let rows = line.run(vec![copy], vec![part(1, 100, &prompt[100..])]);
        let rows: Vec<_> = rows.into_iter().map(into_logits).collect();
        assert!(bits(&rows) == bits(&whole[100..]), "{model}: copy, KV {kv_type:?}");
        // A snapshot, restored in another slot.
        let bytes: Vec<_> = line.stages().iter().map(|s| s.snapshot(SlotId(0)).unwrap()).collect();
        line.run(vec![Line::open_slot(2, None)], Vec::new());
        for (stage, bytes) in line.stages().iter_mut().zip(&bytes) {
            stage.restore(SlotId(2), bytes).unwrap();
        }
        let rows = line.run(Vec::new(), vec![part(2, head.len(), tail)]);
        let rows: Vec<_> = rows.into_iter().map(into_logits).collect();
        assert!(bits(&rows) == bits(&whole[head.len()..]), "{model}: snapshot, KV {kv_type:?}");
        // A cut tail, computed again.
        let cut = SeqOp::Truncate { slot: SlotId(0), len: 65, planes: None };
        let rows = line.run(vec![cut], vec![part(0, 65, &prompt[65..])]);
        let rows: Vec<_> = rows.into_iter().map(into_logits).collect();
        assert!(bits(&rows) == bits(&whole[65..]), "{model}: truncate, KV {kv_type:?}");
    }
}

fn recurrent_state_is_copied_and_restored_with_the_same_bits() {
    let (prompt, head) = continued(4);
    let (head, tail) = prompt.split_at(head);
    let models = [
        "granitehybrid",
        "falcon-h1",
        "kimi-linear",
        "qwen3next",
        "kimi-k3",
        "glm5-next",
        "deepseek4",
        "qwen4exp",
    ];
    for model in models {
        let config = LineConfig { cuts: vec![2], ..LineConfig::default() };
        let mut line = Line::open(&path(model), &config);
        let whole = line.logits(&prompt, 512);
        let part = |slot, pos: usize, tokens: &[u32]| SeqPart {
            slot: SlotId(slot),
            pos: pos as u32,
            tokens: tokens.to_vec(),
            want: Want::Logits,
            mu: None,
            ahead: None,
        };
        line.run(vec![Line::open_slot(0, None)], vec![part(0, 0, head)]);
        let bytes: Vec<_> = line.stages().iter().map(|s| s.snapshot(SlotId(0)).unwrap()).collect();
        let SeqOp::Open { blocks, .. } = Line::open_slot(1, None) else { unreachable!() };
        let len = head.len() as u32;
        let (src, dst, request) = (SlotId(0), SlotId(1), "copy".into());
        let copy = SeqOp::Copy { src, dst, len, blocks, sampler: None, request };
        let rows = line.run(vec![copy], vec![part(1, head.len(), tail)]);
        let rows: Vec<_> = rows.into_iter().map(into_logits).collect();
        assert!(bits(&rows) == bits(&whole[head.len()..]), "{model}: copy");
        line.run(vec![Line::open_slot(2, None)], Vec::new());
        for (stage, bytes) in line.stages().iter_mut().zip(&bytes) {
            stage.restore(SlotId(2), bytes).unwrap();
        }
        let rows = line.run(Vec::new(), vec![part(2, head.len(), tail)]);
        let rows: Vec<_> = rows.into_iter().map(into_logits).collect();
        assert!(bits(&rows) == bits(&whole[head.len()..]), "{model}: snapshot");
    }
}

/// Rows of a prompt, of all of which logits are wanted.
fn rows(prompt: &[u32], slot: u32, range: Range<usize>) -> SeqPart {
    SeqPart {
        slot: SlotId(slot),
        pos: range.start as u32,
        tokens: prompt[range].to_vec(),
        want: Want::Logits,
        mu: None,
        ahead: None,
    }
}

/// Each stage's copies of a prompt in slot 0 at position 100, which has one full page, and at its end, without that page.
fn copied_twice(line: &mut Line, prompt: &[u32]) -> [Vec<StageCopy>; 2] {
    let copy = |stage: &Stage, len: usize, pages: u32| {
        stage.copy_new(SlotId(0), len as u32, None, pages, CopyRoom::fresh(1 << 30)).unwrap()
    };
    let (first, len) = (100, prompt.len());
    line.run(vec![Line::open_slot(0, None)], vec![rows(prompt, 0, 0..first)]);
    let early = line.stages().iter().map(|stage| copy(stage, first, 0)).collect();
    line.run(Vec::new(), vec![rows(prompt, 0, first..len)]);
    [early, line.stages().iter().map(|stage| copy(stage, len, 1)).collect()]
}

/// Copies as checkpoints take them: full pages once, the rest of the last position.
fn pages_and_slots_are_put_back_from_copies_with_the_same_bits() {
    let (prompt, len) = continued(5);
    for (model, kv_type) in [
        ("granitehybrid", KvType::F16),
        ("deepseek4", KvType::F32),
        ("deepseek4", KvType::F16),
        ("deepseek4", KvType::Q8_0),
    ] {
        let cuts = vec![2];
        let mut line =
            Line::open(&path(model), &LineConfig { kv_type, cuts, ..LineConfig::default() });
        let whole = line.logits(&prompt, 512);
        let part = |slot, range| rows(&prompt, slot, range);
        let [early, late] = copied_twice(&mut line, &prompt[..len]);
        line.run(vec![Line::open_slot(2, None)], Vec::new());
        let n = line.stages().len();
        for (i, stage) in line.stages().iter_mut().enumerate() {
            assert!(early[i].complete && late[i].complete, "{model}: room for all");
            let known = if i + 1 == n { &prompt[..len] } else { &[] };
            let source = |print: &LayerPrint, block: u32| {
                let of = |copy: &BlockCopy| copy.layer == print.0 && copy.block == block;
                let late = late[i].blocks.iter().find(|copy| of(copy))?;
                let early = early[i].blocks.iter().find(|copy| of(copy))?;
                let pages = vec![&early.pages[..], &late.pages];
                Some(BlockSource::Bytes { pages, rest: &late.rest })
            };
            stage.put_back(SlotId(2), len as u32, known, source).unwrap();
        }
        let rows = line.run(Vec::new(), vec![part(2, len..prompt.len())]);
        let rows: Vec<_> = rows.into_iter().map(into_logits).collect();
        assert!(bits(&rows) == bits(&whole[len..]), "{model}: put back, KV {kv_type:?}");
    }
}

/// Ubatches of another sequence come between the parts: windows keep what was put there.
fn a_state_is_put_back_in_parts_while_others_are_computed() {
    let (prompt, len) = continued(5);
    let cuts = vec![2];
    for model in ["gemma3", "granitehybrid", "deepseek4"] {
        let config = LineConfig { cuts: cuts.clone(), windows: true, ..LineConfig::default() };
        let mut line = Line::open(&path(model), &config);
        let whole = line.logits(&prompt, 512);
        let part = |slot, range| rows(&prompt, slot, range);
        let [early, late] = copied_twice(&mut line, &prompt[..len]);
        line.run(vec![Line::open_slot(1, None), Line::open_slot(2, None)], Vec::new());
        // The page, then the other pages with what is good at that position alone, and the other sequence behind each.
        let mut come: Vec<Vec<(u32, u32, Written)>> = vec![Vec::new(); early.len()];
        let (mut others, n) = (Vec::new(), prompt.len() / 2);
        for (copies, range) in [(&early, 0..n), (&late, n..prompt.len())] {
            for ((stage, copy), come) in line.stages().iter_mut().zip(copies).zip(&mut come) {
                let is_late = copy.first_page == 1;
                let of = |print: &LayerPrint, block: u32| {
                    let found =
                        copy.blocks.iter().find(|c| c.layer == print.0 && c.block == block)?;
                    let rest = if is_late { &found.rest[..] } else { &[] };
                    Some(BlockPart { first_page: copy.first_page, pages: vec![&found.pages], rest })
                };
                *come = stage.put_part(SlotId(2), len as u32, of).unwrap();
            }
            let rows = line.run(Vec::new(), vec![part(1, range)]);
            others.extend(rows.into_iter().map(into_logits));
        }
        assert!(bits(&others) == bits(&whole), "{model}: the other sequence");
        let n = line.stages().len();
        for (i, (stage, come)) in line.stages().iter_mut().zip(&come).enumerate() {
            let known = if i + 1 == n { &prompt[..len] } else { &[] };
            let of = |print: &LayerPrint, block: u32| {
                let found = come.iter().find(|(layer, at, _)| (*layer, *at) == (print.0, block))?;
                Some(BlockSource::Written(found.2))
            };
            stage.put_back(SlotId(2), len as u32, known, of).unwrap();
        }
        let rows = line.run(Vec::new(), vec![part(2, len..prompt.len())]);
        let rows: Vec<_> = rows.into_iter().map(into_logits).collect();
        assert!(bits(&rows) == bits(&whole[len..]), "{model}: put back in parts");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        cuts_ubatch_sizes_and_threads_do_not_change_a_bit,
        every_pair_of_cut_and_ubatch_size_gives_the_same_bits,
        neighbours_in_the_batch_do_not_change_a_bit,
        copies_and_snapshots_continue_with_the_same_bits,
        recurrent_state_is_copied_and_restored_with_the_same_bits,
        pages_and_slots_are_put_back_from_copies_with_the_same_bits,
        a_state_is_put_back_in_parts_while_others_are_computed;
];

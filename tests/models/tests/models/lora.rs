//! Low-rank adapters against llama.cpp, against models that they were merged into, and beside each other.
//!
//! - Logits with adapters are within 1e-4 of llama.cpp's, the most probable tokens and the greedy ones are equal.
//! - In every architecture, a model with an adapter computes what the model computes that the adapter was merged into.
//! - A row has the same bits whatever adapters the rows beside it use, however the layers are cut, and where it uses
//!   none the bits that it has without any adapter loaded.
//! - Adapters that do not fit are refused by name, with what to do.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use brigade_engine::batch::{SeqPart, SlotId, Want};
use brigade_gguf::{Gguf, GgufWriter};
use brigade_model_tests::golden::{Adapted, Golden, argmax, relative_error_of, same_bits};
use brigade_model_tests::kinds::unquantised;
use brigade_model_tests::line::{self, Line, LineConfig};
use brigade_quant::GgmlType;
use brigade_synth::{AdapterSpec, write_adapter};

/// Rows of logits: as in the golden tests.
const LIMIT: f64 = 1e-4;
/// Beside merged models, whose sums are taken in another order.
const MERGED_LIMIT: f64 = 1e-5;

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lora");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn adapter(model: &Path, name: &str, spec: AdapterSpec) -> PathBuf {
    let path = folder().join(format!("{name}-{}.gguf", spec.seed));
    write_adapter(&Gguf::open(model).unwrap(), &spec, &path).unwrap();
    path
}

fn values(model: &Gguf, name: &str) -> Vec<f32> {
    let bytes = model.data(model.require(name).unwrap()).unwrap();
    let (values, _) = bytes.as_chunks::<4>();
    values.iter().map(|value| f32::from_le_bytes(*value)).collect()
}

/// The f32 model at `path` with an adapter merged into it; where embedding and head are one, the embedding is left.
fn merge(path: &Path, adapter: &Path, scale: f32, out: &Path) {
    let (model, adapter) = (Gguf::open(path).unwrap(), Gguf::open(adapter).unwrap());
    let alpha = adapter.meta().opt_f32("adapter.lora.alpha").unwrap().unwrap_or(0.0);
    let mut writer = GgufWriter::new();
    for (key, value) in model.meta().iter() {
        writer.set(key, &value).unwrap();
    }
    for tensor in model.tensors() {
        writer.tensor(&tensor.name, tensor.ty, tensor.dims()).unwrap();
    }
    let mut stream = writer.start(Vec::new()).unwrap();
    for tensor in model.tensors() {
        let a = adapter.tensor(&format!("{}.lora_a", tensor.name));
        let Some(a) = a.filter(|_| tensor.name != brigade_spec::TOKEN_EMBD) else {
            stream.write(model.data(tensor).unwrap()).unwrap();
            continue;
        };
        assert_eq!(tensor.ty, GgmlType::F32, "{}", tensor.name);
        let mut w = values(&model, &tensor.name);
        let (cols, rank) = (a.ne[0], a.ne[1]);
        let b = values(&adapter, &format!("{}.lora_b", tensor.name));
        let a = values(&adapter, &a.name);
        let factor = if alpha == 0.0 { scale } else { scale * alpha / rank as f32 };
        let matrices = tensor.ne[2];
        // What a matrix is multiplied with, the change is not.
        let stem = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
        let scales = model.tensor(&format!("{stem}.scale"));
        let scales = scales.filter(|scales| scales.n_elems() == matrices);
        let scales = scales.map_or(vec![1.0; matrices], |scales| values(&model, &scales.name));
        let (a_len, b_len, w_len) = (a.len() / matrices, b.len() / matrices, w.len() / matrices);
        for (i, w) in w.chunks_exact_mut(w_len).enumerate() {
            let (a, b) = (&a[i * a_len..][..a_len], &b[i * b_len..][..b_len]);
            for (w, b) in w.chunks_exact_mut(cols).zip(b.chunks_exact(rank)) {
                for (j, w) in w.iter_mut().enumerate() {
                    let change: f64 =
                        (0..rank).map(|r| f64::from(b[r]) * f64::from(a[r * cols + j])).sum();
                    *w = (f64::from(*w) + f64::from(factor / scales[i]) * change) as f32;
                }
            }
        }
        let bytes: Vec<u8> = w.into_iter().flat_map(f32::to_le_bytes).collect();
        stream.write(&bytes).unwrap();
    }
    std::fs::write(out, stream.finish().unwrap()).unwrap();
}

/// An adapter of `model` without some of its tensors.
fn without(adapter: &Path, drop: impl Fn(&str) -> bool) {
    let whole = Gguf::open(adapter).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in whole.meta().iter() {
        writer.set(key, &value).unwrap();
    }
    let kept: Vec<_> = whole.tensors().iter().filter(|tensor| !drop(&tensor.name)).collect();
    for tensor in &kept {
        writer.tensor(&tensor.name, tensor.ty, tensor.dims()).unwrap();
    }
    let mut stream = writer.start(Vec::new()).unwrap();
    kept.iter().for_each(|tensor| stream.write(whole.data(tensor).unwrap()).unwrap());
    std::fs::write(adapter, stream.finish().unwrap()).unwrap();
}

/// ||ours - theirs|| / ||theirs||, without logits that both mask: these would drown the others.
fn relative(ours: &[Vec<f32>], theirs: &[Vec<f32>]) -> f64 {
    let (mut difference, mut norm) = (0.0, 0.0);
    let pairs = ours.iter().flatten().zip(theirs.iter().flatten());
    for (a, b) in pairs.filter(|(a, b)| (**a, **b) != (f32::MIN, f32::MIN)) {
        difference += f64::from(a - b).powi(2);
        norm += f64::from(*b).powi(2);
    }
    (difference / norm).sqrt()
}

fn logits_with_adapters_match_llama_cpp_at_every_cut() {
    let manifest = Golden::repository().manifest;
    for (name, entry) in Adapted::repository().models {
        let path = entry.synth.make();
        let adapters: Vec<_> = (0..entry.adapters.len())
            .map(|i| folder().join(format!("{name}-golden-{i}.gguf")))
            .collect();
        entry.adapters.iter().zip(&adapters).for_each(|(recipe, file)| recipe.make(&path, file));
        let uses = (0..).zip(entry.adapters.iter().map(|recipe| recipe.scale)).collect();
        let config = LineConfig { adapters, uses, ..LineConfig::default() };
        let n_layer = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap().n_layer();
        let run = |cuts: Vec<usize>, n_ubatch: usize| {
            let mut line = Line::open(&path, &LineConfig { cuts, ..config.clone() });
            let logits = line.logits(&manifest.tokens, n_ubatch);
            (logits, line.generate(&manifest.greedy_prompt, entry.greedy.len(), n_ubatch))
        };
        let (logits, greedy) = run(Vec::new(), 64);
        let error =
            relative_error_of(&Adapted::folder().join(&entry.logits), &entry.positions, &logits);
        let equal = (0..logits.len()).filter(|&i| argmax(&logits[i]) == entry.argmax[i]).count();
        println!(
            "{name:20} error {error:.2e}  argmax {equal}/{}  greedy {}",
            logits.len(),
            greedy == entry.greedy
        );
        assert!(error <= LIMIT, "{name}: error {error:e}");
        assert_eq!(
            (equal, &greedy),
            (logits.len(), &entry.greedy),
            "{name}: argmax, greedy tokens"
        );
        let cuts = (1..n_layer).map(|cut| vec![cut]).chain([(1..n_layer).collect()]);
        for (cut, n_ubatch) in cuts.zip([1, 7, 100].into_iter().cycle()) {
            let (other, text) = run(cut.clone(), n_ubatch);
            assert!(same_bits(&logits, &other) && text == greedy, "{name}: cut {cut:?}");
        }
    }
}

fn a_model_with_an_adapter_computes_what_the_merged_model_computes() {
    let golden = Golden::repository();
    let tokens = &golden.manifest.tokens[..40];
    let mut n_checked = 0;
    let mut bad = Vec::new();
    for (name, entry) in unquantised(&golden) {
        let path = golden.model(entry);
        let spec = AdapterSpec { rank: 4, alpha: 2.0, seed: 7 };
        let lora = adapter(&path, name, spec);
        without(&lora, |tensor| tensor.starts_with(brigade_spec::TOKEN_EMBD));
        let merged = folder().join(format!("{name}-merged.gguf"));
        merge(&path, &lora, 0.5, &merged);
        let theirs = Line::open(&merged, &LineConfig::default()).logits(tokens, 64);
        let config = LineConfig {
            adapters: vec![lora.clone()],
            uses: vec![(0, 0.5)],
            ..LineConfig::default()
        };
        let ours = Line::open(&path, &config).logits(tokens, 64);
        let plain = Line::open(&path, &LineConfig::default()).logits(tokens, 64);
        let (error, change) = (relative(&ours, &theirs), relative(&plain, &theirs));
        println!("{name:20} error {error:.2e}, the adapter changes {change:.2e}");
        if error > MERGED_LIMIT || change < 1e-2 {
            bad.push(format!("{name}: error {error:.2e}, change {change:.2e}"));
        }
        [lora, merged].iter().for_each(|file| std::fs::remove_file(file).unwrap());
        n_checked += 1;
    }
    println!("{n_checked} models checked");
    assert!(bad.is_empty(), "{bad:#?}");
}

/// Adapters of each sequence.
const USES: [&[(u32, f32)]; 4] = [&[(0, 1.0)], &[], &[(1, 0.5), (0, 2.0)], &[(1, 0.5)]];

/// Logits of the sequences of [`USES`], all in the same ubatches: prompts first, of different lengths, then row by row.
fn together(
    line: &mut Line,
    tokens: &[u32],
    which: &[usize],
    n_ubatch: usize,
) -> Vec<Vec<Vec<f32>>> {
    let mut rows = vec![Vec::new(); USES.len()];
    let mut ops = Vec::new();
    for &i in which {
        ops.push(Line::open_slot(i as u32, None));
        if !USES[i].is_empty() {
            ops.push(Line::adapt(i as u32, USES[i]));
        }
    }
    let mut at = vec![0; USES.len()];
    loop {
        let mut parts = Vec::new();
        for &i in which {
            let end = tokens.len() - 3 * i;
            let n = (end - at[i]).min(n_ubatch + i);
            if n > 0 {
                let (pos, part) = (at[i] as u32, tokens[at[i]..at[i] + n].to_vec());
                let slot = SlotId(i as u32);
                parts.push(SeqPart {
                    slot,
                    pos,
                    tokens: part,
                    want: Want::Logits,
                    mu: None,
                    ahead: None,
                });
                at[i] += n;
            }
        }
        if parts.is_empty() {
            break;
        }
        for row in line.run(std::mem::take(&mut ops), parts) {
            let slot = row.slot.0 as usize;
            rows[slot].push(line::into_logits(row));
        }
    }
    rows
}

fn rows_of_different_adapters_in_one_ubatch_have_the_bits_of_each_alone_at_every_cut() {
    let golden = Golden::repository();
    let tokens = &golden.manifest.tokens[..24];
    for name in ["llama", "qwen2moe", "granitehybrid", "deepseek2", "gpt2", "rwkv7", "gemma4-moe"] {
        let path = golden.named(name);
        let spec = |seed| AdapterSpec { rank: 5, alpha: 8.0, seed };
        let adapters = vec![adapter(&path, name, spec(1)), adapter(&path, name, spec(2))];
        let n_layer = brigade_models::describe(&Gguf::open(&path).unwrap()).unwrap().n_layer();
        let open = |cuts: Vec<usize>, threads| {
            let config =
                LineConfig { cuts, threads, adapters: adapters.clone(), ..LineConfig::default() };
            Line::open(&path, &config)
        };
        let alone: Vec<_> = (0..USES.len())
            .map(|i| together(&mut open(Vec::new(), 1), tokens, &[i], 64)[i].clone())
            .collect();
        let none =
            Line::open(&path, &LineConfig::default()).logits(&tokens[..tokens.len() - 3], 64);
        assert!(same_bits(&alone[1], &none), "{name}: a row without adapters");
        for (i, rows) in alone.iter().enumerate().filter(|(i, _)| *i != 1) {
            assert!(
                relative(&rows[..10], &none[..10]) > 1e-2,
                "{name}: adapters {i} change nothing"
            );
        }
        let mut cuts: Vec<Vec<usize>> = (1..n_layer).map(|cut| vec![cut]).collect();
        cuts.extend([Vec::new(), Line::even_cuts(n_layer, 3), (1..n_layer).collect()]);
        let n = cuts.len();
        for (cut, n_ubatch) in cuts.into_iter().zip([1, 7, 64].into_iter().cycle()) {
            let mut line = open(cut.clone(), 2);
            let rows = together(&mut line, tokens, &[2, 0, 1, 3], n_ubatch);
            for i in 0..USES.len() {
                assert!(
                    same_bits(&alone[i], &rows[i]),
                    "{name}: sequence {i}, cut {cut:?}, ubatch {n_ubatch}"
                );
            }
        }
        println!("{name}: {n} cuts, {} sequences, same bits", USES.len());
    }
}

fn a_copy_and_a_snapshot_are_of_the_adapters_that_made_them() {
    let golden = Golden::repository();
    let path = golden.named("llama");
    let adapters = vec![adapter(&path, "copies", AdapterSpec { rank: 4, alpha: 0.0, seed: 3 })];
    let model = Arc::new(Gguf::open_with(&path, &adapters).unwrap());
    assert_eq!(model.adapters().len(), 1);
    let mut line = Line::open(&path, &LineConfig { adapters, ..LineConfig::default() });
    let tokens = &golden.manifest.tokens[..8];
    let part = |slot, pos, tokens: &[u32]| SeqPart {
        slot: SlotId(slot),
        pos,
        tokens: tokens.to_vec(),
        want: Want::Logits,
        mu: None,
        ahead: None,
    };
    let ops = vec![Line::open_slot(0, None), Line::adapt(0, &[(0, 1.0)])];
    line.run(ops, vec![part(0, 0, tokens)]);
    let snapshot = line.stages()[0].snapshot(SlotId(0)).unwrap();
    let ops = vec![
        Line::open_slot(1, None),
        Line::open_slot(2, None),
        Line::adapt(2, &[(0, 0.5)]),
        Line::open_slot(3, None),
        Line::adapt(3, &[(0, 1.0)]),
    ];
    line.run(ops, Vec::new());
    for other in [1, 2] {
        let refused = line.stages()[0].restore(SlotId(other), &snapshot).unwrap_err().to_string();
        assert!(refused.contains("adapters 0*1"), "{refused}");
    }
    line.stages()[0].restore(SlotId(3), &snapshot).unwrap();
    let rows = line.run(Vec::new(), vec![part(0, 8, &tokens[..1]), part(3, 8, &tokens[..1])]);
    let rows: Vec<_> = rows.into_iter().map(line::into_logits).collect();
    assert!(same_bits(&rows[..1], &rows[1..]));
}

/// An adapter of `model` with another header than [`write_adapter`] gives it, and other names and sizes of tensors.
fn bent(
    model: &Path,
    name: &str,
    header: &[(&str, &str)],
    tensor: impl Fn(&str, &mut Vec<usize>) -> String,
) -> PathBuf {
    let plain =
        adapter(model, &format!("plain-{name}"), AdapterSpec { rank: 2, alpha: 0.0, seed: 5 });
    let plain = Gguf::open(&plain).unwrap();
    let mut writer = GgufWriter::new();
    let own = |key: &str| header.iter().find(|(other, _)| *other == key).map(|(_, value)| *value);
    for (key, value) in plain.meta().iter() {
        match own(key) {
            Some(value) => writer.set(key, value).unwrap(),
            None => writer.set(key, &value).unwrap(),
        }
    }
    for (key, value) in header.iter().filter(|(key, _)| plain.meta().get(key).is_none()) {
        writer.set(key, *value).unwrap();
    }
    let mut sizes = Vec::new();
    for info in plain.tensors() {
        let mut ne = info.dims().to_vec();
        let name = tensor(&info.name, &mut ne);
        writer.tensor(&name, info.ty, &ne).unwrap();
        sizes.push(ne.iter().product::<usize>() * 4);
    }
    let mut stream = writer.start(Vec::new()).unwrap();
    sizes.iter().for_each(|size| stream.write(&vec![0; *size]).unwrap());
    let path = folder().join(format!("bent-{name}.gguf"));
    std::fs::write(&path, stream.finish().unwrap()).unwrap();
    path
}

fn adapters_that_do_not_fit_are_refused_by_name() {
    let golden = Golden::repository();
    let path = golden.named("llama");
    let other = golden.named("deepseek2");
    let same = |name: &str, _: &mut Vec<usize>| name.to_owned();
    let rename = |from: &'static str, to: &'static str| {
        move |name: &str, _: &mut Vec<usize>| name.replace(from, to)
    };
    let cases = [
        (
            bent(&path, "arch", &[("general.architecture", "qwen3")], same),
            "it is for qwen3, and the model is llama",
        ),
        (bent(&path, "kind", &[("adapter.type", "control")], same), "adapter.type"),
        (bent(&path, "alora", &[("adapter.alora.invocation_tokens", "1")], same), "aLoRA"),
        (bent(&path, "general", &[("general.type", "model")], same), "adapters of it by --lora"),
        (bent(&path, "unknown", &[], rename("blk.0.attn_q.", "blk.0.attn_x.")), "does not have"),
        (bent(&path, "layer", &[], rename("blk.0.", "blk.77.")), "does not have"),
        (
            bent(&path, "suffix", &[], rename(".lora_a", ".lora_c")),
            "neither with .lora_a nor .lora_b",
        ),
        (
            bent(
                &path,
                "half",
                &[],
                rename("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.bias.lora_a"),
            ),
            "blk.0.attn_q",
        ),
        (
            bent(&path, "shape", &[], |name, ne| {
                ne[0] += usize::from(name == "blk.0.attn_q.weight.lora_a");
                name.to_owned()
            }),
            "does not fit: lora_a has dimensions",
        ),
        (
            bent(&path, "norm", &[], |name, ne| {
                *ne = if name.starts_with("blk.0.attn_q") { vec![ne[0], 2] } else { ne.clone() };
                name.replace("blk.0.attn_q.", "blk.0.attn_norm.")
            }),
            "to which brigade applies no adapter",
        ),
        (
            adapter(&other, "other", AdapterSpec { rank: 2, alpha: 0.0, seed: 1 }),
            "it is for deepseek2",
        ),
        (path.clone(), "adapters of it by --lora"),
    ];
    for (file, word) in cases {
        let refused = match Gguf::open_with(&path, std::slice::from_ref(&file)) {
            Err(error) => error.to_string(),
            Ok(model) => brigade_models::describe(&model).unwrap_err().to_string(),
        };
        assert!(refused.contains(word), "{word}: {refused}");
        let name = file.file_name().unwrap().to_str().unwrap();
        assert!(refused.contains(name), "{name}: {refused}");
    }
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        logits_with_adapters_match_llama_cpp_at_every_cut,
        a_model_with_an_adapter_computes_what_the_merged_model_computes,
        rows_of_different_adapters_in_one_ubatch_have_the_bits_of_each_alone_at_every_cut,
        a_copy_and_a_snapshot_are_of_the_adapters_that_made_them,
        adapters_that_do_not_fit_are_refused_by_name;
];

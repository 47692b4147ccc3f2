//! Control vectors against llama.cpp and at every cut, and what is refused.

use std::path::{Path, PathBuf};

use brigade_engine::batch::{SeqPart, SlotId, UBatch, Want};
use brigade_engine::control_vectors::ControlVectors;
use brigade_engine::stage::StageOutput;
use brigade_gguf::{Gguf, GgufWriter};
use brigade_model_tests::golden::{
    Encoders, Golden, Steered, VectorRecipe, argmax, relative_error_of, same_bits,
};
use brigade_model_tests::line::{Line, LineConfig, into_logits};
use brigade_quant::GgmlType;
use brigade_spec::ModelSpec;

/// Rows of logits: as in the golden tests.
const LIMIT: f64 = 1e-4;

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("control_vectors");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn spec_of(model: &Path) -> ModelSpec {
    brigade_models::describe(&Gguf::open(model).unwrap()).unwrap()
}

/// A vector of a model, for all of its layers that can have one.
fn vector(model: &Path, name: &str, recipe: &VectorRecipe) -> PathBuf {
    let (path, spec) = (folder().join(format!("{name}.gguf")), spec_of(model));
    recipe.make(spec.n_embd, 1..spec.n_layer(), &path);
    path
}

fn logits_with_control_vectors_match_llama_cpp_at_every_cut() {
    let manifest = Golden::repository().manifest;
    for (name, entry) in Steered::repository().models {
        let path = entry.synth.make();
        let n_layer = spec_of(&path).n_layer();
        let files = entry.vectors.iter().enumerate();
        let control_vectors = files
            .map(|(i, recipe)| (vector(&path, &format!("{name}-{i}"), recipe), recipe.scale))
            .collect();
        let [first, last] = entry.layers;
        let control_layers = Some(first..=last);
        let config = LineConfig { control_vectors, control_layers, ..LineConfig::default() };
        let run = |cuts: Vec<usize>, n_ubatch: usize| {
            let mut line = Line::open(&path, &LineConfig { cuts, ..config.clone() });
            let logits = line.logits(&manifest.tokens, n_ubatch);
            (logits, line.generate(&manifest.greedy_prompt, entry.greedy.len(), n_ubatch))
        };
        let (logits, greedy) = run(Vec::new(), 64);
        let theirs = Steered::folder().join(&entry.logits);
        let error = relative_error_of(&theirs, &entry.positions, &logits);
        let equal = (0..logits.len()).filter(|&i| argmax(&logits[i]) == entry.argmax[i]).count();
        let n = logits.len();
        println!(
            "{name:12} error {error:.2e}  argmax {equal}/{n}  greedy {}",
            greedy == entry.greedy
        );
        assert!(error <= LIMIT, "{name}: error {error:e}");
        assert_eq!((equal, &greedy), (n, &entry.greedy), "{name}: argmax, greedy tokens");
        let plain = Line::open(&path, &LineConfig::default()).logits(&manifest.tokens, 64);
        let without = relative_error_of(&theirs, &entry.positions, &plain);
        assert!(without > 100.0 * LIMIT, "{name}: {without:e} without the vectors");
        let cuts = (1..n_layer).map(|cut| vec![cut]).chain([(1..n_layer).collect()]);
        for (cut, n_ubatch) in cuts.zip([1, 7, 100].into_iter().cycle()) {
            let (other, text) = run(cut.clone(), n_ubatch);
            assert!(same_bits(&logits, &other) && text == greedy, "{name}: cut {cut:?}");
        }
    }
}

/// Rows that the first layers give, cut before layer `before`: `[n_rows, width]` for each tensor of the cut.
fn boundary(model: &Path, before: usize, control_vectors: Vec<(PathBuf, f32)>) -> Vec<f32> {
    let config = LineConfig { cuts: vec![before], control_vectors, ..LineConfig::default() };
    let mut line = Line::open(model, &config);
    let tokens = Golden::repository().manifest.tokens[..9].to_vec();
    let part =
        SeqPart { slot: SlotId(0), pos: 0, tokens, want: Want::Nothing, mu: None, ahead: None };
    let ub = UBatch { id: 0, ops: vec![Line::open_slot(0, None)], parts: vec![part] };
    match line.stages()[0].forward(&ub, None).unwrap() {
        StageOutput::Boundary(rows) => rows.data,
        StageOutput::Rows(rows) => panic!("the first stage is the last one, and gave {rows:?}"),
    }
}

fn a_direction_moves_the_stream_behind_its_layer_by_just_that() {
    // Deci has layers that do nothing; one layer of Nemotron-H is one block; Kimi K3 keeps rows beside the stream.
    for name in ["llama", "gemma2", "nemotron_h", "kimi-k3", "deci"] {
        let model = Golden::repository().named(name);
        let spec = spec_of(&model);
        for layer in 1..spec.n_layer() - 1 {
            let path = folder().join(format!("moves-{name}-{layer}.gguf"));
            VectorRecipe { seed: 5, scale: 1.0 }.make(spec.n_embd, layer..layer + 1, &path);
            let files = vec![(path, 1.0)];
            let read = ControlVectors::read(&files, None, &spec).unwrap();
            let direction = read.of(layer).unwrap();
            let mut expected = boundary(&model, layer + 1, Vec::new());
            if !spec.layers[layer].blocks.is_empty() {
                let stream = expected[..9 * spec.n_embd].chunks_exact_mut(spec.n_embd);
                stream.for_each(|row| row.iter_mut().zip(direction).for_each(|(x, d)| *x += d));
            }
            let moved = boundary(&model, layer + 1, files);
            assert!(same_bits(&[expected], &[moved]), "{name}: layer {layer}");
        }
    }
}

fn directions_of_all_layers_give_the_same_bits_at_every_cut() {
    let tokens = &Golden::repository().manifest.tokens[..40];
    for name in ["deci", "nemotron_h", "kimi-k3"] {
        let model = Golden::repository().named(name);
        let n_layer = spec_of(&model).n_layer();
        let all = vector(&model, &format!("all-{name}"), &VectorRecipe { seed: 6, scale: 1.0 });
        let config = LineConfig { control_vectors: vec![(all, 1.0)], ..LineConfig::default() };
        let logits = |cuts: Vec<usize>, n_ubatch: usize| {
            Line::open(&model, &LineConfig { cuts, ..config.clone() }).logits(tokens, n_ubatch)
        };
        let whole = logits(Vec::new(), 64);
        let plain = Line::open(&model, &LineConfig::default()).logits(tokens, 64);
        assert!(!same_bits(&whole, &plain), "{name}: the vectors change nothing");
        for cut in 1..n_layer {
            assert!(same_bits(&whole, &logits(vec![cut], 7)), "{name}: cut {cut}");
        }
        assert!(same_bits(&whole, &logits((1..n_layer).collect(), 1)), "{name}: every layer");
    }
}

fn states_and_copies_are_of_the_vectors_that_made_them() {
    let model = Golden::repository().named("llama");
    let one = vector(&model, "states-1", &VectorRecipe { seed: 1, scale: 1.0 });
    let tokens = &Golden::repository().manifest.tokens[..30];
    let line = |control_vectors: Vec<(PathBuf, f32)>| {
        let mut line = Line::open(&model, &LineConfig { control_vectors, ..LineConfig::default() });
        let part = |tokens: &[u32]| {
            let tokens = tokens.to_vec();
            vec![SeqPart {
                slot: SlotId(0),
                pos: 0,
                tokens,
                want: Want::Logits,
                mu: None,
                ahead: None,
            }]
        };
        let rows = line.run(vec![Line::open_slot(0, None)], part(tokens));
        let rows: Vec<Vec<f32>> = rows.into_iter().map(into_logits).collect();
        (line, rows)
    };
    let (mut with, of_one) = line(vec![(one.clone(), 1.0)]);
    let (mut other, of_half) = line(vec![(one.clone(), 0.5)]);
    let (mut without, plain) = line(vec![]);
    assert!(!same_bits(&of_one, &of_half) && !same_bits(&of_half, &plain));
    // Twice a half is the whole.
    let (mut same, twice) = line(vec![(one.clone(), 0.5), (one, 0.5)]);
    assert!(same_bits(&twice, &of_one));
    let kinds =
        [&mut with, &mut other, &mut without, &mut same].map(|line| line.stages()[0].copy_kind());
    assert_eq!(kinds[0], kinds[3]);
    assert!(kinds[0] != kinds[1] && kinds[1] != kinds[2] && kinds[0] != kinds[2], "{kinds:?}");
    let state = with.stages()[0].snapshot(SlotId(0)).unwrap();
    same.stages()[0].restore(SlotId(0), &state).unwrap();
    for line in [&mut other, &mut without] {
        let refused = line.stages()[0].restore(SlotId(0), &state).unwrap_err().to_string();
        assert!(refused.contains("control vectors"), "{refused}");
    }
}

/// A file of one tensor.
fn file(name: &str, kind: &str, tensor: &str, ty: GgmlType, dims: &[usize], value: f32) -> PathBuf {
    let path = folder().join(format!("{name}.gguf"));
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", kind).unwrap();
    writer.tensor(tensor, ty, dims).unwrap();
    let mut stream = writer.start(Vec::new()).unwrap();
    let n = dims.iter().product();
    let bytes: Vec<u8> = match ty {
        GgmlType::F32 => std::iter::repeat_n(value.to_le_bytes(), n).flatten().collect(),
        _ => vec![0; 2 * n],
    };
    stream.write(&bytes).unwrap();
    std::fs::write(&path, stream.finish().unwrap()).unwrap();
    path
}

/// A file without tensors.
fn empty(name: &str) -> PathBuf {
    let path = folder().join(format!("{name}.gguf"));
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "controlvector").unwrap();
    std::fs::write(&path, writer.start(Vec::new()).unwrap().finish().unwrap()).unwrap();
    path
}

fn what_does_not_fit_is_refused_by_name() {
    let model = spec_of(&Golden::repository().named("llama"));
    let (n, n_layer) = (model.n_embd, model.n_layer());
    let beyond = format!("direction.{n_layer}");
    let f32s = |name: &str, tensor: &str, dims: &[usize], value: f32| {
        file(name, "controlvector", tensor, GgmlType::F32, dims, value)
    };
    for (file, words) in [
        (file("kind", "llama", "direction.1", GgmlType::F32, &[n], 1.0), "models go to -m"),
        (f32s("name", "blk.1.weight", &[n], 1.0), "blk.1.weight is no direction.N"),
        (f32s("zero", "direction.0", &[n], 1.0), "with a layer N from 1 on"),
        (f32s("beyond", &beyond, &[n], 1.0), "the last one of this model"),
        (f32s("width", "direction.1", &[n + 1], 1.0), "is it of another model?"),
        (f32s("deep", "direction.1", &[n, 2], 1.0), "is it of another model?"),
        (
            file("type", "controlvector", "direction.1", GgmlType::F16, &[n], 0.0),
            "is it of another model?",
        ),
        (f32s("nan", "direction.1", &[n], f32::NAN), "no numbers: train it again"),
        (f32s("nothing", "direction.1", &[n], 0.0), "change no layer"),
        (empty("empty"), "empty.gguf: it has no direction.N tensors"),
        (folder().join("none.gguf"), "none.gguf"),
    ] {
        let refused = ControlVectors::read(&[(file.clone(), 1.0)], None, &model).unwrap_err();
        assert!(refused.to_string().contains(words), "{}: {refused}", file.display());
    }
    let large = vec![(f32s("large", "direction.1", &[n], f32::MAX), 2.0)];
    let refused = ControlVectors::read(&large, None, &model).unwrap_err();
    assert!(refused.to_string().contains("layer 1 is no number"), "{refused}");
    let good = vec![(f32s("good", "direction.1", &[n], 1.0), 2.0)];
    let read = |layers| ControlVectors::read(&good, layers, &model);
    assert_eq!(read(None).unwrap().of(1), Some(&vec![2.0; n][..]));
    assert_eq!(read(None).unwrap().layers().collect::<Vec<_>>(), [1]);
    assert!(read(Some(2..=3)).unwrap_err().to_string().contains("--control-vector-layers"));
    let bert = spec_of(&Encoders::repository().models["bert"].synth.make());
    let refused = ControlVectors::read(&good, None, &bert).unwrap_err();
    assert!(refused.to_string().contains("on an encoder"), "{refused}");
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        logits_with_control_vectors_match_llama_cpp_at_every_cut,
        a_direction_moves_the_stream_behind_its_layer_by_just_that,
        directions_of_all_layers_give_the_same_bits_at_every_cut,
        states_and_copies_are_of_the_vectors_that_made_them,
        what_does_not_fit_is_refused_by_name;
];

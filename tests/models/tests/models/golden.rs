//! Every golden model against llama.cpp's logits, whole and cut.
//!
//! - f32 models are within 1e-4 (relative 2-norm over all given positions). Their most probable tokens and
//!   their greedy tokens are equal.
//! - Quantised models are within 3e-2, and the most probable token is equal at 90 % of the positions at
//!   least. llama.cpp rounds activations to 8 bits in larger blocks than brigade does. It differs from itself
//!   by 1.3e-2 when its ubatch size changes.
//! - Logits are the same bits for every number of stages, and at every cut between layers of two kinds. Logits of
//!   recurrent models are also the same in ubatches of 1 and of 512.
//!
//! The models run on the op table that serves here, or on the one that `BRIGADE_TEST_KERNELS` names
//! (`avx512`, `avx2`, `neon`, `reference`).

use brigade_gguf::Gguf;
use brigade_model_tests::golden::{
    Adapted, Encoders, Entry, Golden, NOT_RUN, Recipe, Steered, argmax, relative_error, same_bits,
};
use brigade_model_tests::line::{self, Line, LineConfig};
use brigade_spec::{BlockSpec, LayerSpec, ModelSpec, StateSpec};

const F32_LIMIT: f64 = 1e-4;
const QUANT_LIMIT: f64 = 3e-2;
const QUANT_ARGMAX_SHARE: f64 = 0.9;

/// Architectures whose golden models are not in the repository but in `BRIGADE_TEST_DATA`.
const IN_TEST_DATA: [&str; 2] = ["qwen2", "qwen3moe"];

fn golden_models_match_llama_cpp_at_every_number_of_stages() {
    println!("kernels: {}", line::serving().name);
    let mut n_checked = 0;
    for golden in Golden::folders() {
        for (name, entry) in golden.models() {
            let model = Gguf::open(golden.model(entry)).unwrap();
            let spec = brigade_models::describe(&model).unwrap_or_else(|e| panic!("{name}: {e}"));
            check(&golden, name, entry, &spec);
            n_checked += 1;
        }
    }
    println!("{n_checked} models checked");
}

/// A name that no folder has, a file that no manifest names: either would be a model that is not checked. Models are
/// made once and stay in the system's folder for temporary files: so a `synth` that makes others now would not be
/// noticed where they are there.
fn synth_makes_the_models_that_results_are_of() {
    let (golden, encoders) = (Golden::repository(), Encoders::repository());
    let (adapted, steered) = (Adapted::repository(), Steered::repository());
    let recipes = golden.models().filter_map(|(_, entry)| entry.synth.as_ref());
    let recipes = recipes.chain(encoders.models.values().map(|entry| &entry.synth));
    let recipes = recipes.chain(adapted.models.values().map(|entry| &entry.synth));
    let recipes: Vec<&Recipe> =
        recipes.chain(steered.models.values().map(|entry| &entry.synth)).collect();
    assert!(recipes.len() > 100, "{} recipes", recipes.len());
    for recipe in recipes {
        recipe.make_anew();
    }
}

fn every_golden_model_is_run_or_excused() {
    let golden = Golden::folders();
    let listed = |name: &str| golden.iter().any(|g| g.manifest.models.contains_key(name));
    let unknown: Vec<_> = NOT_RUN.iter().filter(|(name, _)| !listed(name)).collect();
    assert!(unknown.is_empty(), "not in any manifest: {unknown:?}");
    let repository = Golden::repository();
    let named: Vec<&str> = repository.manifest.models.values().map(|e| e.file.as_str()).collect();
    for entry in std::fs::read_dir(&repository.folder).unwrap() {
        let file = entry.unwrap().file_name().into_string().unwrap();
        assert!(!file.ends_with(".gguf") || named.contains(&file.as_str()), "{file}: not listed");
    }
    let arch_of = |entry: &Entry| {
        let model = Gguf::open(repository.model(entry)).unwrap();
        model.architecture().unwrap().to_owned()
    };
    let encoders = Encoders::repository().models.into_values().map(|entry| entry.synth.arch);
    let decoders = repository.models().map(|(_, entry)| arch_of(entry));
    let run: Vec<String> = decoders.chain(encoders).collect();
    let supported = brigade_models::supported().into_iter();
    let missing: Vec<_> = supported
        .filter(|arch| !run.iter().any(|run| run == arch) && !IN_TEST_DATA.contains(arch))
        .collect();
    assert!(missing.is_empty(), "architectures without a golden model: {missing:?}");
}

fn check(golden: &Golden, name: &str, entry: &Entry, spec: &ModelSpec) {
    let is_f32 = entry.is_f32(name);
    let path = golden.model(entry);
    let splits = splits(spec, if is_f32 { 3 } else { 2 });
    let run = |(cuts, n_ubatch): &(Vec<usize>, usize)| {
        let config = LineConfig { cuts: cuts.clone(), ..LineConfig::default() };
        let mut line = Line::open(&path, &config);
        let logits = line.logits(&golden.manifest.tokens, *n_ubatch);
        let prompt = &golden.manifest.greedy_prompt;
        (logits, line.generate(prompt, entry.greedy.len(), *n_ubatch))
    };
    let runs: Vec<_> = splits.iter().map(run).collect();
    for (run, split) in runs.iter().zip(&splits) {
        assert!(same_bits(&runs[0].0, &run.0), "{name}: logits depend on (cuts, ubatch) {split:?}");
        assert_eq!(runs[0].1, run.1, "{name}: tokens depend on (cuts, ubatch) {split:?}");
    }
    let (logits, greedy) = &runs[0];
    let error = relative_error(golden, entry, logits);
    let n = entry.argmax.len();
    let equal = (0..n).filter(|&i| argmax(&logits[i]) == entry.argmax[i]).count();
    let same_text = greedy == &entry.greedy;
    println!(
        "{name:20} {} splits  error {error:.2e}  argmax {equal}/{n}  greedy {}",
        splits.len(),
        if same_text { "equal" } else { "differs" }
    );
    if is_f32 {
        assert!(error <= F32_LIMIT, "{name}: error {error:e}");
        assert_eq!(equal, n, "{name}: argmax");
        assert!(same_text, "{name}: greedy tokens");
    } else {
        assert!(error <= QUANT_LIMIT, "{name}: error {error:e}");
        assert!(equal as f64 >= QUANT_ARGMAX_SHARE * n as f64, "{name}: argmax {equal}/{n}");
    }
}

/// Cuts and ubatch sizes to compute with: one stage and `n_stages`; every
/// cut between layers of two kinds, and with recurrent state very small and large ubatches.
fn splits(spec: &ModelSpec, n_stages: usize) -> Vec<(Vec<usize>, usize)> {
    let even = Line::even_cuts(spec.n_layer(), n_stages);
    let mut splits = vec![(Vec::new(), 64), (even.clone(), 64)];
    let kinds = |il: usize| -> Vec<_> {
        let kind = |b: &BlockSpec| (std::mem::discriminant(&b.kind), b.kind.window());
        spec.layers[il].blocks.iter().map(kind).collect()
    };
    let between = (1..spec.n_layer()).filter(|&cut| kinds(cut - 1) != kinds(cut));
    splits.extend(between.map(|cut| (vec![cut], 64)));
    let has_slots = |layer: &LayerSpec| {
        let is_slot = |state| matches!(state, StateSpec::Slot { .. } | StateSpec::Entries { .. });
        layer.blocks.iter().any(|b| is_slot(b.kind.state()))
    };
    if spec.layers.iter().any(has_slots) {
        splits.extend([(even.clone(), 1), (even, 512)]);
    }
    splits
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        golden_models_match_llama_cpp_at_every_number_of_stages,
        synth_makes_the_models_that_results_are_of,
        every_golden_model_is_run_or_excused;
];

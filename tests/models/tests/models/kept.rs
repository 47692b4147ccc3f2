//! A stage made of what another one had in memory: nothing of that is read again, and it computes the same bits.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use brigade_engine::batch::{
    Ahead, Boundary, PageId, SamplerSetup, SamplingParams, SeqOp, SeqPart, SlotId, UBatch, Want,
};
use brigade_engine::device::Device;
use brigade_engine::kernels::select;
use brigade_engine::stage::{KeptWeights, NextStage, Stage, StageConfig, StageOutput};
use brigade_engine::weights::{TensorBytes, TensorSource};
use brigade_gguf::{Gguf, GgufError, TensorInfo};
use brigade_model_tests::line::ONE_SEQUENCE;
use brigade_synth::{Arch, FileType, Shape, Spec};

/// A model's tensors, which notes who was asked for and can fail.
struct Watched {
    model: Arc<Gguf>,
    asked: Mutex<BTreeSet<String>>,
    /// Reading the tensor of this name fails.
    broken: Option<String>,
    fails: AtomicBool,
}

impl Watched {
    fn new(model: &Arc<Gguf>) -> Arc<Self> {
        Self::breaking(model, None)
    }

    fn breaking(model: &Arc<Gguf>, broken: Option<&str>) -> Arc<Self> {
        let (model, broken) = (model.clone(), broken.map(str::to_owned));
        Arc::new(Self { model, asked: Mutex::default(), broken, fails: AtomicBool::new(true) })
    }

    /// Layers that were read, and whether anything outside of them was.
    fn layers_read(&self) -> (BTreeSet<usize>, bool) {
        let asked = self.asked.lock().unwrap();
        let layers = asked.iter().filter_map(|name| brigade_spec::layer_of(name)).collect();
        (layers, asked.iter().any(|name| brigade_spec::layer_of(name).is_none()))
    }
}

impl TensorSource for Watched {
    fn tensor<'a>(&'a self, tensor: &TensorInfo) -> Result<TensorBytes<'a>, GgufError> {
        self.asked.lock().unwrap().insert(tensor.name.clone());
        if self.broken.as_ref() == Some(&tensor.name) && self.fails.load(Ordering::SeqCst) {
            return Err(GgufError::MissingTensor { name: tensor.name.clone() });
        }
        self.model.data(tensor).map(TensorBytes::from)
    }
}

fn model(arch: &str, name: &str) -> (Arc<Gguf>, PathBuf) {
    model_of(arch, Shape { n_layer: 6, ..Shape::named("tiny").unwrap() }, name)
}

fn model_of(arch: &str, shape: Shape, name: &str) -> (Arc<Gguf>, PathBuf) {
    let arch = Arch::named(arch).unwrap();
    let path =
        std::env::temp_dir().join(format!("brigade-kept-{name}-{}.gguf", std::process::id()));
    let spec = Spec { arch, shape, quant: FileType::F32, seed: 1, header_only: false };
    brigade_synth::write(&spec, &path).unwrap();
    (Arc::new(Gguf::open(&path).unwrap()), path)
}

fn load(source: &Arc<Watched>, layers: Range<usize>, kept: &mut KeptWeights) -> Option<Stage> {
    load_with(source, layers, ONE_SEQUENCE, kept)
}

fn load_with(
    source: &Arc<Watched>,
    layers: Range<usize>,
    config: StageConfig,
    kept: &mut KeptWeights,
) -> Option<Stage> {
    let device = Device::cpu(select(None).unwrap(), 1, None).unwrap();
    let model = source.model.clone();
    Stage::load_keeping(
        &brigade_models::described(&model).unwrap(),
        source.clone(),
        layers,
        config,
        device,
        kept,
        &mut |_| (),
    )
    .ok()
}

/// Output of a stage for some tokens, or for rows that could have come from the stage before.
fn output(stage: &mut Stage) -> StageOutput {
    let slot = SlotId(0);
    let open = SeqOp::Open { slot, blocks: vec![PageId(0)], sampler: None, request: "r".into() };
    let last = stage.layers().end == stage.spec().n_layer();
    let want = if last { Want::Logits } else { Want::Nothing };
    let tokens = vec![5, 17, 300];
    let width = stage.spec().boundary(stage.layers().start).width();
    let data = (0..tokens.len() * width).map(|i| (i % 97) as f32 / 50.0 - 1.0).collect();
    let input = (stage.layers().start > 0).then_some(Boundary { n_rows: tokens.len(), data });
    let part = SeqPart { slot, pos: 0, tokens, want, mu: None, ahead: None };
    stage.forward(&UBatch { id: 0, ops: vec![open], parts: vec![part] }, input).unwrap()
}

/// Moves a stage through some ranges of layers; each time only those that it lacks are read, and it computes
/// what a stage does that is loaded from nothing.
fn moves(arch: &str) {
    let (model, path) = model(arch, arch);
    let mut before = 0..0;
    let mut kept = KeptWeights::default();
    for layers in [0..3, 0..5, 2..5, 2..6, 3..6, 0..6, 0..2] {
        let source = Watched::new(&model);
        let mut stage = load(&source, layers.clone(), &mut kept).unwrap();
        let (read, others) = source.layers_read();
        let new: BTreeSet<usize> = layers.clone().filter(|l| !before.contains(l)).collect();
        assert_eq!(read, new, "{arch}: {before:?} to {layers:?}");
        let new_end = (layers.start == 0 && before.start > 0)
            || (layers.end == 6 && before.end < 6)
            || before.is_empty();
        assert_eq!(others, new_end, "{arch}: {before:?} to {layers:?}");
        let mut fresh = load(&Watched::new(&model), layers.clone(), &mut KeptWeights::default());
        assert_eq!(output(&mut stage), output(fresh.as_mut().unwrap()), "{arch}: {layers:?}");
        before = layers;
        kept = stage.into_kept();
    }
    std::fs::remove_file(path).unwrap();
}

fn only_layers_that_are_not_in_memory_are_read() {
    for arch in ["llama", "granitehybrid", "rwkv7"] {
        moves(arch);
    }
}

/// A stage goes from `before` to `layers`; what it lacks was loaded while it was still there.
fn loaded_ahead(model: &Arc<Gguf>, before: Range<usize>, layers: Range<usize>) {
    let device = Device::cpu(select(None).unwrap(), 1, None).unwrap();
    let mut stage =
        load(&Watched::new(model), before.clone(), &mut KeptWeights::default()).unwrap();
    let source = Watched::new(model);
    let (wanted, has) = (layers.clone(), before.clone());
    let ahead = KeptWeights::load_ahead(
        &brigade_models::described(model).unwrap(),
        source.clone(),
        NextStage { layers: wanted, has, own_drafts: false, host_experts: 0 },
        &device,
        &mut |_| (),
    )
    .unwrap();
    let (read, others) = source.layers_read();
    let lacks: BTreeSet<usize> = layers.clone().filter(|l| !before.contains(l)).collect();
    let gets_an_end = layers.start == 0 && before.start > 0 || layers.end == 6 && before.end < 6;
    assert_eq!((read, others), (lacks, gets_an_end), "{before:?} to {layers:?}");
    output(&mut stage);
    let mut kept = stage.into_kept();
    kept.absorb(ahead);
    let source = Watched::new(model);
    let mut next = load(&source, layers.clone(), &mut kept).unwrap();
    assert_eq!(source.layers_read(), (BTreeSet::new(), false), "{before:?} to {layers:?}");
    let mut fresh = load(&Watched::new(model), layers.clone(), &mut KeptWeights::default());
    assert_eq!(output(&mut next), output(fresh.as_mut().unwrap()), "{before:?} to {layers:?}");
}

fn what_was_loaded_ahead_is_not_loaded_again() {
    for arch in ["llama", "granitehybrid", "rwkv7"] {
        let (model, path) = model(arch, &format!("ahead-{arch}"));
        for (before, layers) in [(0..3, 0..5), (0..3, 2..6), (2..4, 0..6), (4..6, 0..3)] {
            loaded_ahead(&model, before, layers);
        }
        std::fs::remove_file(path).unwrap();
    }
}

fn what_was_loaded_before_a_failure_is_not_loaded_again() {
    let (model, path) = model("llama", "failing");
    let source = Watched::breaking(&model, Some("blk.3.attn_q.weight"));
    let mut kept = KeptWeights::default();
    assert!(load(&source, 0..6, &mut kept).is_none());
    assert_eq!(kept.layers().collect::<Vec<_>>(), [0, 1, 2]);
    source.fails.store(false, Ordering::SeqCst);
    source.asked.lock().unwrap().clear();
    let stage = load(&source, 0..6, &mut kept).unwrap();
    assert_eq!(source.layers_read().0, BTreeSet::from([3, 4, 5]));
    assert_eq!(stage.layers(), 0..6);
    std::fs::remove_file(path).unwrap();
}

fn a_part_with_a_tensor_that_may_have_changed_goes() {
    let (model, path) = model("llama", "changed");
    let mut kept = KeptWeights::default();
    let stage = load(&Watched::new(&model), 0..6, &mut kept).unwrap();
    let mut kept = stage.into_kept();
    kept.retain(&|tensor| tensor != "blk.2.ffn_up.weight" && tensor != "output_norm.weight");
    assert_eq!(kept.layers().collect::<Vec<_>>(), [0, 1, 3, 4, 5]);
    assert!(kept.has_embedding());
    let source = Watched::new(&model);
    load(&source, 0..6, &mut kept).unwrap();
    let (layers, head) = source.layers_read();
    assert_eq!((layers, head), (BTreeSet::from([2]), true));
    std::fs::remove_file(path).unwrap();
}

/// A model of six layers that are gone through twice.
fn looped(name: &str) -> (Arc<Gguf>, PathBuf) {
    model("nanbeige", name)
}

/// Layers of the file that layers are.
fn in_file(layers: &Range<usize>) -> BTreeSet<usize> {
    layers.clone().map(|layer| layer % 6).collect()
}

fn passes_through_a_layer_share_its_weights() {
    let (model, path) = looped("passes");
    let load_new = |layers: &Range<usize>| {
        load(&Watched::new(&model), layers.clone(), &mut KeptWeights::default()).unwrap()
    };
    let bytes = |layers: Range<usize>| load_new(&layers).facts().weight_bytes;
    assert_eq!([bytes(0..7), bytes(3..11)], [bytes(0..6); 2]);
    assert_eq!(bytes(5..7), bytes(5..6) + bytes(0..1));
    let mut before = 0..0;
    let mut kept = KeptWeights::default();
    for layers in [0..4, 4..8, 0..12, 6..9, 1..3, 2..12] {
        let source = Watched::new(&model);
        let mut stage = load(&source, layers.clone(), &mut kept).unwrap();
        let new: BTreeSet<_> = in_file(&layers).difference(&in_file(&before)).copied().collect();
        assert_eq!(source.layers_read().0, new, "{before:?} to {layers:?}");
        let mut fresh = load_new(&layers);
        assert_eq!(output(&mut stage), output(&mut fresh), "{layers:?}");
        assert_eq!(stage.facts(), fresh.facts(), "{layers:?}");
        let names = stage.layer_tensors();
        assert_eq!(names.keys().copied().collect::<Vec<_>>(), layers.clone().collect::<Vec<_>>());
        for (layer, names) in names {
            let own = |name: &String| brigade_spec::layer_of(name) == Some(layer % 6);
            assert!(!names.is_empty() && names.iter().all(own), "{layer}: {names:?}");
        }
        before = layers;
        kept = stage.into_kept();
    }
    std::fs::remove_file(path).unwrap();
}

fn a_layer_that_stays_is_not_loaded_ahead_for_another_pass() {
    let (model, path) = looped("passes-ahead");
    let device = Device::cpu(select(None).unwrap(), 1, None).unwrap();
    for (before, layers) in [(0..4, 0..12), (4..8, 4..12), (0..4, 2..9)] {
        let both = before.start.max(layers.start)..before.end.min(layers.end);
        let source = Watched::new(&model);
        let (wanted, has) = (layers.clone(), both.clone());
        let ahead = KeptWeights::load_ahead(
            &brigade_models::described(&model).unwrap(),
            source.clone(),
            NextStage { layers: wanted, has, own_drafts: false, host_experts: 0 },
            &device,
            &mut |_| (),
        );
        let lacks: BTreeSet<_> = in_file(&layers).difference(&in_file(&both)).copied().collect();
        assert_eq!(source.layers_read().0, lacks, "{before:?} to {layers:?}");
        let stage = load(&Watched::new(&model), before.clone(), &mut KeptWeights::default());
        let mut kept = stage.unwrap().into_kept();
        kept.absorb(ahead.unwrap());
        let source = Watched::new(&model);
        let mut next = load(&source, layers.clone(), &mut kept).unwrap();
        assert_eq!(source.layers_read().0, BTreeSet::new(), "{before:?} to {layers:?}");
        let mut fresh = load(&Watched::new(&model), layers, &mut KeptWeights::default()).unwrap();
        assert_eq!(output(&mut next), output(&mut fresh));
    }
    std::fs::remove_file(path).unwrap();
}

/// Config of a stage with the model's block of drafts.
const DRAFTING: StageConfig = StageConfig { own_drafts: true, ..ONE_SEQUENCE };

/// The token that a last stage draws behind some rows, with what its block drafts behind that one.
fn drafted(stage: &mut Stage) -> StageOutput {
    let (slot, params) = (SlotId(0), SamplingParams::greedy());
    let sampler = Some(Arc::new(SamplerSetup { params, ..SamplerSetup::default() }));
    let open = SeqOp::Open { slot, blocks: vec![PageId(0)], sampler, request: "r".into() };
    let tokens = vec![5, 17, 300];
    let width = stage.spec().boundary(stage.layers().start).width();
    let data = (0..tokens.len() * width).map(|i| (i % 97) as f32 / 50.0 - 1.0).collect();
    let input = (stage.layers().start > 0).then_some(Boundary { n_rows: tokens.len(), data });
    let ahead = Some(Ahead { sure: 0, known: 0, planes: None, drafts: 3 });
    let part = SeqPart { slot, pos: 0, tokens, want: Want::Sample, mu: None, ahead };
    let ops = vec![open, SeqOp::Draft { slot }];
    stage.forward(&UBatch { id: 0, ops, parts: vec![part] }, input).unwrap()
}

fn a_block_of_drafts_stays_with_the_last_layers() {
    let shape = Shape { n_layer: 6, ..Shape::named("golden-wide-moe-drafts").unwrap() };
    let (model, path) = model_of("glm4moe", shape, "drafts");
    let mut before = 0..0;
    let mut kept = KeptWeights::default();
    for layers in [0..6, 2..6, 4..6, 0..6, 0..3, 1..6, 1..4, 2..6] {
        let source = Watched::new(&model);
        let mut stage = load_with(&source, layers.clone(), DRAFTING, &mut kept).unwrap();
        let of_blocks = if layers.end == 6 { layers.start..7 } else { layers.clone() };
        let new: BTreeSet<_> = of_blocks.clone().filter(|l| !before.contains(l)).collect();
        assert_eq!(source.layers_read().0, new, "{before:?} to {layers:?}");
        let fresh =
            load_with(&Watched::new(&model), layers.clone(), DRAFTING, &mut KeptWeights::default());
        let mut fresh = fresh.unwrap();
        assert_eq!(stage.facts(), fresh.facts(), "{layers:?}");
        if layers.end == 6 {
            assert_eq!(drafted(&mut stage), drafted(&mut fresh), "{layers:?}");
        }
        before = of_blocks;
        kept = stage.into_kept();
    }
    // One of its tensors may have changed, and only then it is read; and a stage without blocks lets go of it.
    assert!(kept.tensors().any(|tensor| tensor == "blk.6.nextn.eh_proj.weight"));
    kept.retain(&|tensor| tensor != "blk.6.attn_norm.weight");
    let source = Watched::new(&model);
    let stage = load_with(&source, 2..6, DRAFTING, &mut kept).unwrap();
    assert_eq!(source.layers_read().0, BTreeSet::from([6]));
    let mut kept = stage.into_kept();
    let stage = load(&Watched::new(&model), 2..6, &mut kept).unwrap();
    assert!(stage.into_kept().tensors().all(|tensor| !tensor.starts_with("blk.6.")));
    std::fs::remove_file(path).unwrap();
}

fn a_block_of_drafts_is_loaded_ahead() {
    let shape = Shape { n_layer: 6, ..Shape::named("golden-wide-moe-drafts").unwrap() };
    let (model, path) = model_of("glm4moe", shape, "drafts-ahead");
    let device = Device::cpu(select(None).unwrap(), 1, None).unwrap();
    for (before, layers) in [(0..3, 0..6), (2..4, 3..6), (0..6, 2..6)] {
        let (has, source) = (before.clone(), Watched::new(&model));
        let ahead = KeptWeights::load_ahead(
            &brigade_models::described(&model).unwrap(),
            source.clone(),
            NextStage { layers: layers.clone(), has, own_drafts: true, host_experts: 0 },
            &device,
            &mut |_| (),
        );
        assert_eq!(source.layers_read().0.contains(&6), before.end < 6, "{before:?}");
        let new = || KeptWeights::default();
        let stage = load_with(&Watched::new(&model), before.clone(), DRAFTING, &mut new());
        let mut kept = stage.unwrap().into_kept();
        kept.absorb(ahead.unwrap());
        let source = Watched::new(&model);
        let mut next = load_with(&source, layers.clone(), DRAFTING, &mut kept).unwrap();
        assert_eq!(source.layers_read(), (BTreeSet::new(), false), "{before:?} to {layers:?}");
        let fresh = load_with(&Watched::new(&model), layers.clone(), DRAFTING, &mut new());
        assert_eq!(drafted(&mut next), drafted(&mut fresh.unwrap()), "{before:?} to {layers:?}");
    }
    std::fs::remove_file(path).unwrap();
}

pub const TESTS: &[brigade_harness::Test] = brigade_harness::tests![
    computes:
        only_layers_that_are_not_in_memory_are_read,
        what_was_loaded_ahead_is_not_loaded_again,
        what_was_loaded_before_a_failure_is_not_loaded_again,
        a_part_with_a_tensor_that_may_have_changed_goes,
        passes_through_a_layer_share_its_weights,
        a_layer_that_stays_is_not_loaded_ahead_for_another_pass,
        a_block_of_drafts_stays_with_the_last_layers,
        a_block_of_drafts_is_loaded_ahead;
];

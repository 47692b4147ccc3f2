//! Loads a stage: its description, its weights, and room for its state.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::Stage;
use super::facts;
use super::fingerprint;
use super::head::Head;
use super::input::{EmbeddingLora, Input};
use super::kept::{self, Kept, KeptFor, KeptLayer, KeptWeights, Names};
use super::layer_rows::ForLayers;
use super::layers::{BlockWeights, LoadedBlock};
use super::own_drafts::OwnDrafts;
use super::rope::load_rope;
use super::switched::SwitchedOn;
use crate::block::{Embedding, Linear, load_block};
use crate::constraint::{ConstraintError, Masks};
use crate::control_vectors::StageVectors;
use crate::device::Device;
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::KvType;
use crate::residual::{self, Begin, ControlVector, HeadInput, Norm, PassBoundary, load_pass_norm};
use crate::sample::Sampler;
use crate::spec::{
    Beside, BlockSpec, Described, EMBEDDING_NORM, LayerSpec, ModelError, ModelSpec, NormSpec,
    OUTPUT, POSITION_EMBD, Reads, StateRoom, TOKEN_EMBD, TOKEN_TYPES, layer_of, own_draft_tensors,
    stage_tensors, stage_tensors_with_drafts,
};
use crate::state::{BlockState, LayerPrint, Sequences};
use crate::weights::{AdapterTensors, ExpertsPlace, TensorSource, WeightLoader};

/// Sizes and options of a stage.
#[derive(Clone, Debug, PartialEq)]
pub struct StageConfig {
    /// Sequences it can hold at a time.
    pub n_slots: usize,
    /// KV pages, shared by all sequences.
    pub n_blocks: u32,
    /// Type of keys and values in the cache.
    pub kv_type: KvType,
    /// Positions a sequence may reach; chooses between the factors of longrope.
    pub n_ctx: u32,
    /// Most rows of a ubatch.
    pub max_rows: usize,
    /// Whether layers with a window keep only the pages that rows to come see. Sequences can then be copied at their
    /// ends alone ([`ModelSpec::prefixes`]).
    pub windows: bool,
    /// Control vectors that are added to the stream behind its layers.
    pub control_vectors: Option<StageVectors>,
    /// Routed experts of layers before this one take the host's memory, where a GPU computes the rest: no byte of a result depends
    /// on it.
    pub host_experts: u32,
    /// Whether the model's own blocks of drafts are loaded, where it has some and this is the last stage.
    pub own_drafts: bool,
}

impl Stage {
    /// Loads `layers` of `described` (a header is enough), reading tensors from `source`.
    /// `progress` is told the bytes of each tensor as it is taken.
    ///
    /// # Errors
    /// A tensor that is missing, misshapen, of an unsupported
    /// type or unknown, or a state that the system has no memory for.
    pub fn load(
        described: &Described<'_>,
        source: Arc<dyn TensorSource>,
        layers: Range<usize>,
        config: StageConfig,
        device: Device,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, ModelError> {
        let mut nothing = KeptWeights::default();
        Self::load_keeping(described, source, layers, config, device, &mut nothing, progress)
    }

    /// As [`Stage::load`], but takes weights from `kept` where they are there, and the rest from `source`. The caller
    /// must know that they are the source's ([`KeptWeights::retain`]). Weights that the stage does not need are dropped
    /// first, so that nothing is in memory twice. After an error, `kept` has all that was loaded.
    ///
    /// # Errors
    /// As [`Stage::load`].
    pub fn load_keeping(
        described: &Described<'_>,
        source: Arc<dyn TensorSource>,
        layers: Range<usize>,
        config: StageConfig,
        device: Device,
        kept: &mut KeptWeights,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self, ModelError> {
        let Described { model, spec } = described.clone();
        check(&spec, &layers, &config)?;
        let model_hash = blake3::hash(&model.header_bytes());
        let experts = ExpertsPlace::new(&device, config.host_experts)?;
        let (home, own_drafts) = (device.home(), config.own_drafts);
        kept.retain_for(&spec, KeptFor { model_hash, home, experts, layers: &layers, own_drafts });
        let mut loader = loader(model, &spec, &source, &device, experts, progress);
        kept.tensors().for_each(|tensor| loader.taken_before(tensor));
        let rope = load_rope(spec.rope.as_ref(), config.n_ctx, &mut loader)?;
        let local_rope = load_rope(spec.local_rope.as_ref(), config.n_ctx, &mut loader)?;
        let pass_norm = load_pass_norm(&spec, &layers, &mut loader)?;
        let tensors = stage_tensors_with_drafts(model, &spec, &layers, config.own_drafts);
        let needs = Needs { model, spec: &spec, layers: &layers, own_drafts, has: &(0..0) };
        load_weights(needs, &source, &mut loader, kept)?;
        let prints = prints(model, &spec, source.as_ref(), kept)?;
        loader.finish(&tensors)?;
        release(source.as_ref(), &tensors, None);
        let states = states(&device, &spec, &layers, &config)?;
        let of_drafts = OwnDrafts::states(kept.drafts.is_some(), &spec, &device, &config)?;
        kept.make_room(&device)?;
        // From here on nothing fails.
        let mut names = Names::default();
        let mut blocks = Vec::new();
        for (layer, Kept { tensors, part }) in std::mem::take(&mut kept.layers) {
            names.layers.insert(layer, (tensors, part.print));
            blocks.extend(layer_blocks(&spec, layer, part.weights));
        }
        blocks.iter_mut().zip(states).for_each(|(block, state)| block.state = state);
        let rows = config.control_vectors.as_ref().map_or(&[][..], |vectors| &vectors.rows);
        steer(&mut blocks, layers.start, rows, &spec);
        end_passes(&mut blocks, &spec, pass_norm.map(Arc::new));
        let embedding = taken(&mut kept.embedding, &mut names.embedding);
        let head = taken(&mut kept.head, &mut names.head);
        let own_drafts = taken(&mut kept.drafts, &mut names.drafts);
        let own_drafts = own_drafts
            .and_then(|blocks| OwnDrafts::new(&spec, blocks, of_drafts, &device, &config));
        let facts = facts::of(&spec, &blocks, head.as_ref(), own_drafts.as_ref(), &device);
        let (prefixes, last) = (spec.prefixes(config.windows), layers.end == spec.n_layer());
        let sequences = Sequences::new(config.n_slots, config.n_blocks, prefixes, last);
        Ok(Self {
            n_adapters: model.adapters().len(),
            spec,
            model_hash,
            prints,
            names,
            layers,
            config,
            facts,
            scratch: device.scratch(),
            device,
            embedding,
            blocks,
            head,
            rope,
            local_rope,
            sequences,
            drawing: Vec::new(),
            own_drafts,
            n_reading: 0,
        })
    }
}

/// A part out of what is kept; `names` get those of its tensors.
fn taken<T>(kept: &mut Option<Kept<T>>, names: &mut Vec<String>) -> Option<T> {
    let Kept { tensors, part } = kept.take()?;
    *names = tensors;
    Some(part)
}

/// Hands out tensors, with experts where they shall lie.
pub(super) fn loader<'a>(
    model: &'a Gguf,
    spec: &ModelSpec,
    source: &'a Arc<dyn TensorSource>,
    device: &'a Device,
    place: ExpertsPlace,
    progress: &'a mut dyn FnMut(u64),
) -> WeightLoader<'a> {
    let loader = WeightLoader::new(model, source.as_ref(), device, progress);
    loader.sharing(source.clone()).with_experts(place).with_switched(switched(spec))
}

/// Refuses layers that the model does not have, and a configuration that is not for them.
fn check(spec: &ModelSpec, layers: &Range<usize>, config: &StageConfig) -> Result<(), ModelError> {
    if layers.is_empty() || layers.end > spec.n_layer() {
        let n = spec.n_layer();
        return Err(ModelError::Bad(format!("layers {layers:?} of a model with {n}")));
    }
    if let Some(vectors) = &config.control_vectors
        && vectors.rows.len() != layers.len() * spec.n_embd
    {
        let (n, values) = (layers.len(), vectors.rows.len());
        let why = format!("control vectors of {values} values for {n} layers of {}", spec.n_embd);
        return Err(ModelError::Bad(why));
    }
    if let Some(n) = spec.max_positions().filter(|&n| n < config.n_ctx) {
        let n_ctx = config.n_ctx;
        let why = format!("a context of {n_ctx} positions, the model's table has {n} of them");
        return Err(ModelError::Bad(why));
    }
    Ok(())
}

fn no_vocabulary() -> ConstraintError {
    ConstraintError::Vocabulary("its last stage was not told the tokens' texts".to_owned())
}

/// Description of a model, and the source of its weights, as a stage needs them.
#[derive(Clone, Copy)]
pub(super) struct Needs<'a> {
    pub(super) model: &'a Gguf,
    pub(super) spec: &'a ModelSpec,
    pub(super) layers: &'a Range<usize>,
    pub(super) own_drafts: bool,
    /// Layers of a stage that it will be built of.
    pub(super) has: &'a Range<usize>,
}

/// Loads into `kept` what a stage lacks there, and what the stage that it will be built of does not have either.
pub(super) fn load_weights(
    needs: Needs<'_>,
    source: &Arc<dyn TensorSource>,
    loader: &mut WeightLoader<'_>,
    kept: &mut KeptWeights,
) -> Result<(), ModelError> {
    let Needs { model, spec, layers, own_drafts, has } = needs;
    let tensors = stage_tensors(model, spec, layers);
    let (has_first, has_last) = (has.contains(&0), has.contains(&(spec.n_layer() - 1)));
    if layers.start == 0 && kept.embedding.is_none() && !has_first {
        let part = load_embedding(spec, source, loader)?;
        let tensors = kept::embedding_tensors(model, spec);
        kept.embedding = Some(Kept { tensors, part });
    }
    for layer in layers.clone() {
        let in_file = spec.in_file(layer);
        if kept.has_weights(spec, in_file) || has.clone().any(|had| spec.in_file(had) == in_file) {
            continue;
        }
        let weights = load_layer(spec, layer, loader)?;
        let print = fingerprint::of_layer(model, spec, source.as_ref(), layer)?;
        let tensors_of_it = kept::layer_tensors(model, spec, layer);
        let part = KeptLayer { weights, print, in_file };
        kept.layers.insert(layer, Kept { tensors: tensors_of_it, part });
        release(source.as_ref(), &tensors, Some(in_file));
    }
    kept.share(spec, layers);
    if layers.end == spec.n_layer() && kept.head.is_none() && !has_last {
        let part = load_head(spec, loader)?;
        kept.head = Some(Kept { tensors: kept::head_tensors(model, spec), part });
    }
    if own_drafts && spec.may_draft(layers) && kept.drafts.is_none() && !has_last {
        let part = OwnDrafts::load_all(spec, source, loader)?;
        let tensors = own_draft_tensors(model, spec);
        let in_file: BTreeSet<_> = tensors.iter().filter_map(|t| layer_of(&t.name)).collect();
        in_file.into_iter().for_each(|layer| release(source.as_ref(), &tensors, Some(layer)));
        let tensors = tensors.into_iter().map(|tensor| tensor.name.clone()).collect();
        kept.drafts = Some(Kept { tensors, part });
    }
    Ok(())
}

pub(super) fn load_embedding(
    spec: &ModelSpec,
    source: &Arc<dyn TensorSource>,
    loader: &mut WeightLoader<'_>,
) -> Result<Input, ModelError> {
    let tensor = loader.reference(TOKEN_EMBD, &[spec.n_embd, spec.n_vocab])?;
    let tokens = Embedding::new(source.clone(), tensor, spec.n_embd, spec.n_vocab)?;
    let positions = match spec.max_positions() {
        Some(n) => Some(loader.values(POSITION_EMBD, &[spec.n_embd, n as usize])?),
        None => None,
    };
    let norm = match spec.skeleton.embedding_norm {
        Some(kind) => {
            let weight = format!("{EMBEDDING_NORM}weight");
            Some(Norm::load(loader, kind, &weight, spec.n_embd, spec.head.eps)?)
        }
        None => None,
    };
    let token_type = match spec.skeleton.token_types {
        0 => None,
        n => {
            let rows = loader.values(TOKEN_TYPES, &[spec.n_embd, n])?;
            Some(rows[..spec.n_embd].to_vec().into())
        }
    };
    let mut others: Vec<Box<dyn Begin>> = Vec::new();
    if let Some(switch) = &spec.skeleton.switch {
        others.push(Box::new(SwitchedOn(switch.clone())));
    }
    if let Beside::ForLayers { row, lent } = spec.skeleton.beside {
        others.push(Box::new(ForLayers::load(spec, row, lent, source, loader)?));
    }
    let beside = residual::load_beginning(spec, others, loader)?;
    let mut adapters = Vec::new();
    for AdapterTensors { adapter, alpha, a, b } in loader.adapters(TOKEN_EMBD)? {
        // Rows of tokens are looked up, so that the halves stand the other way round.
        let rank = b.ne[0];
        let b = loader.matrix(&b.name, spec.n_embd, rank)?;
        let a = loader.values(&a.name, &[rank, spec.n_vocab])?.into_vec();
        adapters.push(EmbeddingLora { adapter, a, b, alpha });
    }
    let switch = spec.skeleton.switch.clone();
    Ok(Input { tokens, switch, token_type, positions, norm, beside, adapters })
}

/// The fingerprints of the layers that are in `kept`.
fn prints(
    model: &Gguf,
    spec: &ModelSpec,
    source: &dyn TensorSource,
    kept: &KeptWeights,
) -> Result<Vec<LayerPrint>, ModelError> {
    let print = |(&layer, kept): (&usize, &Kept<KeptLayer>)| {
        let print = fingerprint::in_place(model, spec, source, layer, kept.part.print)?;
        Ok((layer as u32, print))
    };
    kept.layers.iter().map(print).collect()
}

/// Places and rank of adapters inside the file.
pub(super) fn switched(spec: &ModelSpec) -> Option<(usize, usize)> {
    spec.skeleton.switch.as_ref().map(|switch| (switch.n_places, switch.rank))
}

/// Room for the sequences of every block of `layers`, in order.
fn states(
    device: &Device,
    spec: &ModelSpec,
    layers: &Range<usize>,
    config: &StageConfig,
) -> Result<Vec<BlockState>, ModelError> {
    let blocks = spec.layers[layers.clone()].iter().flat_map(|layer| &layer.blocks);
    let room = room(config);
    let state = |block: &BlockSpec| BlockState::new(device, &block.kind, &room);
    blocks.map(state).collect()
}

/// Sizes of the memory for a stage's sequences.
pub(super) fn room(config: &StageConfig) -> StateRoom {
    StateRoom {
        kv_type: config.kv_type,
        n_slots: config.n_slots as u32,
        n_blocks: config.n_blocks,
        max_rows: config.max_rows as u32,
        windows: config.windows,
    }
}

/// Gives each layer's last block what is added behind the layer: `rows` is `[layers, n_embd]` from layer `first` on, or
/// empty. A layer may have no blocks: it does nothing, and its row is left out.
fn steer(blocks: &mut [LoadedBlock], first: usize, rows: &[f32], spec: &ModelSpec) {
    let n_streams = spec.skeleton.streams.n_alike();
    for last in last_of_layers(blocks) {
        let row = rows.chunks_exact(spec.n_embd).nth(last.layer - first);
        if let Some(row) = row.filter(|row| row.iter().any(|value| *value != 0.0)) {
            let vector = row.to_vec().into();
            last.behind.push(Box::new(ControlVector { vector, n_streams }));
        }
    }
}

/// Gives each layer's last block what becomes of the stream where a pass ends there.
fn end_passes(blocks: &mut [LoadedBlock], spec: &ModelSpec, norm: Option<Arc<Norm>>) {
    let Some(norm) = norm else { return };
    for last in last_of_layers(blocks) {
        if let Some(end) = spec.skeleton.passes.end(last.layer, spec.n_layer()) {
            last.behind.push(Box::new(PassBoundary { end, norm: norm.clone() }));
        }
    }
}

fn last_of_layers(blocks: &mut [LoadedBlock]) -> impl Iterator<Item = &mut LoadedBlock> {
    let layers = blocks.chunk_by_mut(|a, b| a.layer == b.layer);
    layers.map(|layer| layer.last_mut().expect("chunks are not empty"))
}

/// Lets go of what is mapped of a layer (`None`: of what is outside the layers) once it is packed:
/// weights are not held twice.
fn release(source: &dyn TensorSource, tensors: &[&TensorInfo], layer: Option<usize>) {
    let mine = tensors.iter().filter(|tensor| layer_of(&tensor.name) == layer);
    mine.for_each(|tensor| source.release(tensor));
}

/// The blocks of layer `layer`, which compute with `weights`; without states.
fn layer_blocks(
    spec: &ModelSpec,
    layer: usize,
    weights: Vec<Arc<BlockWeights>>,
) -> impl Iterator<Item = LoadedBlock> + use<'_> {
    let of_layer = &spec.layers[layer];
    let block = move |(index, weights)| LoadedBlock {
        layer,
        index,
        number: of_layer.state_number(index),
        spec: of_layer.blocks[index].clone(),
        weights,
        state: BlockState::None,
        behind: Vec::new(),
    };
    weights.into_iter().enumerate().map(block)
}

/// The weights of a layer's blocks.
pub(super) fn load_layer(
    spec: &ModelSpec,
    layer: usize,
    loader: &mut WeightLoader<'_>,
) -> Result<Vec<Arc<BlockWeights>>, ModelError> {
    loader.at_layer(spec.in_file(layer));
    load_blocks(spec, &spec.layers[layer], layer, &spec.layer_stem(layer), loader)
}

/// The weights of the blocks of `of_layer`, number `layer`, whose tensors' names begin with `block_stem`.
pub(super) fn load_blocks(
    spec: &ModelSpec,
    of_layer: &LayerSpec,
    layer: usize,
    block_stem: &str,
    loader: &mut WeightLoader<'_>,
) -> Result<Vec<Arc<BlockWeights>>, ModelError> {
    let stem = format!("{block_stem}.");
    let mut blocks = Vec::new();
    for block in &of_layer.blocks {
        let residual = residual::load(spec, block, &stem, loader)?;
        // A block that reads what the one before it read has that one's norm.
        let norm = block.norm.filter(|_| block.reads != Reads::AsBefore);
        blocks.push(Arc::new(BlockWeights {
            residual,
            norm: load_norm(spec, loader, &stem, norm)?,
            post_norm: load_norm(spec, loader, &stem, block.post_norm)?,
            block: load_block(&block.kind, layer, block_stem, spec.n_embd, loader)?,
        }));
    }
    Ok(blocks)
}

/// A norm, where there is one, whose weight's name follows `stem`.
fn load_norm(
    spec: &ModelSpec,
    loader: &mut WeightLoader<'_>,
    stem: &str,
    norm: Option<NormSpec>,
) -> Result<Option<Norm>, ModelError> {
    let Some(NormSpec { weight, eps }) = norm else { return Ok(None) };
    let weight = format!("{stem}{weight}");
    Ok(Some(Norm::load(loader, spec.skeleton.norm, &weight, spec.n_embd, eps)?))
}

pub(super) fn load_head(
    spec: &ModelSpec,
    loader: &mut WeightLoader<'_>,
) -> Result<Head, ModelError> {
    let matrix = if loader.has(OUTPUT) { OUTPUT } else { TOKEN_EMBD };
    let output = if spec.is_encoder() {
        None
    } else if matrix == TOKEN_EMBD {
        // Tied, it is the embedding without what adapters add to that.
        Some(Linear::plain(loader.matrix(matrix, spec.n_vocab, spec.n_embd)?))
    } else {
        Some(Linear::matrix(loader, matrix, spec.n_vocab, spec.n_embd)?)
    };
    let merge = residual::load_merge(spec, loader)?;
    let norm = spec.head.norm.map(|weight| NormSpec { weight, eps: spec.head.eps });
    let read = HeadInput::new(load_norm(spec, loader, "", norm)?, merge);
    Ok(Head {
        spec: spec.head.clone(),
        read,
        output,
        n_embd: spec.n_embd,
        bias: loader.opt_vector("output.bias", spec.n_vocab)?,
        sampler: Sampler::default(),
        masks: Masks::new(Box::new(|| Err(no_vocabulary()))),
        put_off: BTreeMap::new(),
        drafts: Default::default(),
    })
}

//! Loads a stage: its description, its weights, and room for its state.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::block_input::{BlockInput, DepthMix, Mix};
use super::facts;
use super::fingerprint;
use super::gated_streams::GatedConnection;
use super::head::Head;
use super::hyper::HyperConnection;
use super::input::{EmbeddingLora, Input};
use super::kept::{self, Kept, KeptFor, KeptLayer, KeptWeights, Names};
use super::layer_rows::LayerRows;
use super::norm::Norm;
use super::own_drafts::OwnDrafts;
use super::rope::load_rope;
use super::streams::StreamMatrices;
use super::{BlockWeights, LoadedBlock, Stage};
use crate::block::{Embedding, Linear, load_block};
use crate::constraint::{ConstraintError, Masks};
use crate::control_vectors::StageVectors;
use crate::device::Device;
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::KvType;
use crate::sample::Sampler;
use crate::spec::{
    ALTUP_PROJ, Beside, BlockSpec, Described, EMBEDDING_NORM, LOW_START, LayerSpec, ModelError,
    ModelSpec, NormKind, OUTPUT, POSITION_EMBD, Passes, Reads, Residual, StateRoom, TOKEN_EMBD,
    TOKEN_TYPES, layer_of, own_draft_tensors, stage_tensors, stage_tensors_with_drafts,
};
use crate::state::{BlockState, LayerPrint, Sequences};
use crate::weights::{AdapterTensors, ExpertsPlace, TensorSource, WeightLoader};

/// Name of the matrices that make one row for the head of several streams.
const ALTUP_UNEMBD: &str = "altup_unembd_proj.weight";

/// What a stage is loaded for.
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
    /// What is added to the stream behind its layers.
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

    /// As [`Stage::load`], of weights that are in `kept`, and of `source` those that are not. They are known to be
    /// the source's ([`KeptWeights::retain`]). What the stage has no use for is dropped first, so that nothing is
    /// in memory twice; after an error, `kept` has all that was loaded.
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
        steer(&mut blocks, layers.start, rows, spec.n_embd);
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
            pass_norm,
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

/// What a stage needs of a model's weights.
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
    let (row, n_streams) = match spec.skeleton.beside {
        Beside::ForLayers { row, streams, .. } => (row, streams),
        _ => (0, 0),
    };
    let layer_rows = match row {
        0 => None,
        width => Some(LayerRows::load(spec, width, source, loader)?),
    };
    let streams = match n_streams {
        0 => None,
        n => Some(StreamMatrices::load(loader, ALTUP_PROJ, n, spec.n_embd)?),
    };
    let low_start = match spec.skeleton.passes {
        Passes::Stacks(_) => Some(loader.vector(LOW_START, spec.n_embd)?),
        Passes::Once | Passes::Loop(_) => None,
    };
    let mut adapters = Vec::new();
    for AdapterTensors { adapter, alpha, a, b } in loader.adapters(TOKEN_EMBD)? {
        // Rows of tokens are looked up, so that the halves stand the other way round.
        let rank = b.ne[0];
        let b = loader.matrix(&b.name, spec.n_embd, rank)?;
        let a = loader.values(&a.name, &[rank, spec.n_vocab])?.into_vec();
        adapters.push(EmbeddingLora { adapter, a, b, alpha });
    }
    let switch = spec.skeleton.switch.clone();
    Ok(Input {
        tokens,
        switch,
        token_type,
        positions,
        norm,
        layer_rows,
        streams,
        low_start,
        adapters,
    })
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

/// What a stage has room for.
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
fn steer(blocks: &mut [LoadedBlock], first: usize, rows: &[f32], n_embd: usize) {
    for layer in blocks.chunk_by_mut(|a, b| a.layer == b.layer) {
        let (last, others) = layer.split_last_mut().expect("chunks are not empty");
        let row = rows.chunks_exact(n_embd).nth(last.layer - first);
        let row = row.filter(|row| row.iter().any(|value| *value != 0.0));
        others.iter_mut().for_each(|block| block.control_vector = None);
        last.control_vector = row.map(|row| row.to_vec().into());
    }
}

/// Lets go of what is mapped of a layer (`None`: of what is outside the layers) once it is packed:
/// weights are not held twice.
fn release(source: &dyn TensorSource, tensors: &[&TensorInfo], layer: Option<usize>) {
    let mine = tensors.iter().filter(|tensor| layer_of(&tensor.name) == layer);
    mine.for_each(|tensor| source.release(tensor));
}

/// The norm of the stream behind the last layer of a pass, where one ends so in `layers`.
pub(super) fn load_pass_norm(
    spec: &ModelSpec,
    layers: &Range<usize>,
    loader: &mut WeightLoader<'_>,
) -> Result<Option<Norm>, ModelError> {
    let passes = &spec.skeleton.passes;
    if !layers.clone().any(|layer| passes.end(layer, spec.n_layer()).is_some()) {
        return Ok(None);
    }
    let (kind, weight) = match spec.pass_norm(layers) {
        Some(weight) => (spec.skeleton.norm, weight),
        None => (NormKind::RmsUnweighted, ""),
    };
    Ok(Some(Norm::load(loader, kind, weight, spec.n_embd, spec.head.eps)?))
}

/// The blocks of layer `layer`, which device with `weights`; without states.
fn layer_blocks(
    spec: &ModelSpec,
    layer: usize,
    weights: Vec<Arc<BlockWeights>>,
) -> impl Iterator<Item = LoadedBlock> + use<'_> {
    let (blocks, skeleton) = (&spec.layers[layer].blocks, &spec.skeleton);
    let block = move |(index, weights)| {
        let is_last = index + 1 == blocks.len();
        LoadedBlock {
            layer,
            index,
            spec: blocks[index].clone(),
            weights,
            restarts: index == 0 && skeleton.residual.restarts(layer),
            state: BlockState::None,
            control_vector: None,
            pass_end: skeleton.passes.end(layer, spec.n_layer()).filter(|_| is_last),
        }
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
    let mut blocks = Vec::new();
    for (index, block) in of_layer.blocks.iter().enumerate() {
        let stem = format!("{block_stem}.");
        let read = match block.reads {
            Reads::AsBefore => None,
            Reads::Stream | Reads::LayerInput => {
                let place = of_layer.place_among_mixed(index);
                let mix = match place {
                    Some(place) => load_mix(spec, loader, (&stem, place), block.eps)?,
                    None => None,
                };
                Some(load_read(spec, loader, &stem, (block.norm, block.eps), mix)?)
            }
        };
        let post_norm = match block.post_norm {
            Some(name) => Some(load_norm(spec, loader, &format!("{stem}{name}"), block.post_eps)?),
            None => None,
        };
        let mut norm = |name: Option<&str>| -> Result<Option<Norm>, ModelError> {
            let Some(name) = name else { return Ok(None) };
            Ok(Some(load_norm(spec, loader, &format!("{stem}{name}"), block.eps)?))
        };
        let stream_norms = [norm(block.stream_norm)?, norm(block.again_norm)?];
        let mut factor = |name: Option<&str>| match name {
            Some(name) => Ok::<_, ModelError>(Some(loader.vector(&format!("{stem}{name}"), 1)?[0])),
            None => Ok(None),
        };
        let (stream_factor, skip) = (factor(block.stream_factor)?, factor(block.skip)?);
        blocks.push(Arc::new(BlockWeights {
            read,
            post_norm,
            stream_norms,
            stream_factor,
            skip,
            block: load_block(&block.kind, layer, block_stem, spec.n_embd, loader)?,
        }));
    }
    Ok(blocks)
}

fn load_norm(
    spec: &ModelSpec,
    loader: &mut WeightLoader<'_>,
    weight: &str,
    eps: f32,
) -> Result<Norm, ModelError> {
    Norm::load(loader, spec.skeleton.norm, weight, spec.n_embd, eps)
}

/// What block `index` of a layer, of those that streams are mixed for, reads of the streams or of what they were. Its
/// tensors' names begin with `stem`.
fn load_mix(
    spec: &ModelSpec,
    loader: &mut WeightLoader<'_>,
    (stem, index): (&str, usize),
    eps: f32,
) -> Result<Option<Mix>, ModelError> {
    let n_embd = spec.n_embd;
    Ok(match &spec.skeleton.residual {
        Residual::Sum => None,
        Residual::OverDepth(depth) => {
            let score = format!("{stem}{}", depth.scores[index]);
            Some(Mix::Depth(DepthMix::load(loader, &score, n_embd, eps)?))
        }
        Residual::Hyper(hyper) => {
            let stem = format!("{stem}{}", hyper.stems[index]);
            Some(Mix::Hyper(HyperConnection::of_block(loader, hyper, &stem, n_embd)?))
        }
        Residual::Gated(gated) => {
            let stem = format!("{stem}{}", gated.stems[index]);
            Some(Mix::Gated(GatedConnection::load(loader, gated, (&stem, true), n_embd)?))
        }
    })
}

/// What the head reads of the streams or of what they were.
pub(super) fn load_head_mix(
    spec: &ModelSpec,
    loader: &mut WeightLoader<'_>,
) -> Result<Option<Mix>, ModelError> {
    let (n_embd, eps) = (spec.n_embd, spec.head.eps);
    Ok(match (&spec.skeleton.residual, spec.skeleton.beside) {
        (Residual::Sum, Beside::ForLayers { lent, streams: n @ 1.., .. }) => {
            let matrices = StreamMatrices::load(loader, ALTUP_UNEMBD, n, n_embd)?;
            Some(Mix::Streams(matrices, Beside::streams(lent)))
        }
        (Residual::Sum, _) => None,
        (Residual::OverDepth(depth), _) => {
            Some(Mix::Depth(DepthMix::load(loader, depth.head_score, n_embd, eps)?))
        }
        (Residual::Hyper(hyper), _) => Some(match hyper.head_stem {
            Some(stem) => Mix::Hyper(HyperConnection::of_head(loader, hyper, stem, n_embd)?),
            None => Mix::Mean(hyper.n),
        }),
        (Residual::Gated(gated), _) => {
            let stem = (gated.head_stem, false);
            Some(Mix::Gated(GatedConnection::load(loader, gated, stem, n_embd)?))
        }
    })
}

/// A norm with the mixture before it, where there is one. Names follow `stem`.
fn load_read(
    spec: &ModelSpec,
    loader: &mut WeightLoader<'_>,
    stem: &str,
    (norm, eps): (Option<&str>, f32),
    mix: Option<Mix>,
) -> Result<BlockInput, ModelError> {
    let norm = match norm {
        Some(norm) => Some(load_norm(spec, loader, &format!("{stem}{norm}"), eps)?),
        None => None,
    };
    Ok(BlockInput::new(norm, mix))
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
    let mix = load_head_mix(spec, loader)?;
    let read = load_read(spec, loader, "", (spec.head.norm, spec.head.eps), mix)?;
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

//! Loads the blocks of drafts.

use std::ops::Range;
use std::sync::Arc;

use super::OwnDrafts;
use super::block::DraftBlock;
use super::readings::Readings;
use super::ring::Ring;
use crate::batch::MAX_DRAFTED;
use crate::block::{Embedding, Linear};
use crate::device::Device;
use crate::kernels;
use crate::spec::{
    Described, DraftHeadSpec, LayerSpec, ModelError, ModelSpec, Prefixes, StateRoom, TOKEN_EMBD,
    own_draft_tensors,
};
use crate::stage::check::Nothing;
use crate::stage::load::{StageConfig, load_blocks, room, switched};
use crate::stage::norm::Norm;
use crate::stage::{BlockWeights, LoadedBlock};
use crate::state::{BlockState, Sequences};
use crate::weights::{TensorSource, WeightLoader};

impl OwnDrafts {
    /// The blocks of a model that has some, with room for their entries, for a last stage that is to have them.
    pub(in crate::stage) fn load(
        spec: &ModelSpec,
        source: &Arc<dyn TensorSource>,
        loader: &mut WeightLoader<'_>,
        device: &Device,
        (layers, config): (&Range<usize>, &StageConfig),
    ) -> Result<Option<Self>, ModelError> {
        let is_wanted = config.own_drafts && layers.end == spec.n_layer();
        let Some(drafts) = spec.own_drafts.as_ref().filter(|_| is_wanted) else { return Ok(None) };
        // A window is attended with, and all pages are kept: entries may be written over anywhere.
        let room = StateRoom { windows: false, ..room(config) };
        let mut blocks = Vec::new();
        for (i, head) in drafts.heads.iter().enumerate() {
            let mut block = load_block(spec, (i, head), source, loader)?;
            for loaded in &mut block.blocks {
                loaded.state = BlockState::new(device, &loaded.spec.kind, &room)?;
            }
            blocks.push(block);
        }
        let n_slots = room.n_slots as usize;
        Ok(Some(Self {
            depth: drafts.depth(MAX_DRAFTED),
            reads: drafts.reads,
            n_ctx: spec.max_positions().unwrap_or(u32::MAX).min(config.n_ctx),
            ring: Ring::new(device, n_slots, spec.n_embd),
            readings: Readings::default(),
            seen: Sequences::new(n_slots, room.n_blocks, Prefixes::All, false),
            watched: None,
            blocks,
        }))
    }
}

/// The weights of block `i`.
fn load_block(
    spec: &ModelSpec,
    (i, head): (usize, &DraftHeadSpec),
    source: &Arc<dyn TensorSource>,
    loader: &mut WeightLoader<'_>,
) -> Result<DraftBlock, ModelError> {
    let (n_embd, n_vocab, eps) = (spec.n_embd, spec.n_vocab, spec.head.eps);
    let stem = format!("blk.{}", head.in_file);
    let name = |part: &str| format!("{stem}.nextn.{part}.weight");
    let embedding = if head.own_embedding { name("embed_tokens") } else { TOKEN_EMBD.to_owned() };
    let embedding = loader.reference(&embedding, &[n_embd, n_vocab])?;
    let embedding = Embedding::new(source.clone(), embedding, n_embd, n_vocab)?;
    let mut norm = |name: &str| Norm::load(loader, spec.skeleton.norm, name, n_embd, eps);
    let norms = [norm(&name("enorm"))?, norm(&name("hnorm"))?];
    let head_norm = norm(&head.norm)?;
    let join = Linear::matrix(loader, &name("eh_proj"), n_embd, 2 * n_embd)?;
    let output = match head.own_output {
        true => Some(Linear::matrix(loader, &name("shared_head_head"), n_vocab, n_embd)?),
        false => None,
    };
    // Some files have a norm more than is needed.
    loader.taken_before(&format!("{stem}.layer_output_norm.weight"));
    let layer = spec.n_layer() + i;
    // They are few, and drafts are to be fast.
    loader.at_layer(usize::MAX);
    let weights = load_blocks(spec, &head.layer, (layer, &stem), loader)?;
    let blocks = loaded(&head.layer, layer, weights).collect();
    Ok(DraftBlock { embedding, norms, join, blocks, head_norm, output })
}

/// The blocks of a layer behind the model's, with `weights` and without states.
fn loaded(
    of_layer: &LayerSpec,
    layer: usize,
    weights: Vec<Arc<BlockWeights>>,
) -> impl Iterator<Item = LoadedBlock> + use<'_> {
    let block = move |(index, weights)| LoadedBlock {
        layer,
        index,
        spec: of_layer.blocks[index].clone(),
        weights,
        restarts: false,
        state: BlockState::None,
        control_vector: None,
        pass_end: None,
    };
    weights.into_iter().enumerate().map(block)
}

/// Checks that a model has all tensors that its blocks of drafts take, in the shapes that the metadata ask for and in types
/// that have kernels, and no others. No data is read, and a header is enough.
///
/// # Errors
/// The first tensor that is missing, misshapen, of an unsupported type, or unknown: the model runs without the blocks.
pub fn check_own_drafts(described: &Described<'_>) -> Result<(), ModelError> {
    let Described { model, spec } = described;
    let Some(drafts) = &spec.own_drafts else { return Ok(()) };
    let device = Device::cpu(kernels::select(None)?, 1, None)?;
    let source: Arc<dyn TensorSource> = Arc::new(Nothing);
    let mut no_progress = |_| {};
    let mut loader = WeightLoader::new(model, source.as_ref(), &device, &mut no_progress)
        .sharing(source.clone())
        .with_switched(switched(spec))
        .hollow();
    for (i, head) in drafts.heads.iter().enumerate() {
        load_block(spec, (i, head), &source, &mut loader)?;
    }
    loader.finish(&own_draft_tensors(model, spec))
}

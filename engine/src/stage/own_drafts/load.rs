//! Loads the blocks of drafts.

use std::sync::Arc;

use super::OwnDrafts;
use super::block::DraftBlock;
use super::readings::Readings;
use super::ring::Ring;
use crate::batch::MAX_DRAFTED;
use crate::block::{Embedding, Linear};
use crate::device::Device;
use crate::kernels;
use crate::residual::{self, HeadInput, Norm};
use crate::spec::{
    Described, DraftHeadSpec, DraftInput, KEPT_HIDDEN, LayerSpec, ModelError, ModelSpec, Prefixes,
    SPARE_KEYS, StateRoom, TOKEN_EMBD, own_draft_tensors,
};
use crate::stage::check::Nothing;
use crate::stage::layers::{BlockWeights, LoadedBlock};
use crate::stage::load::{StageConfig, load_blocks, room, switched};
use crate::state::{BlockState, Sequences};
use crate::weights::{TensorSource, WeightLoader};

// What is read or drafted behind a position that is gone back to leaves the window before that one alone.
const _: () = assert!(SPARE_KEYS > KEPT_HIDDEN + MAX_DRAFTED);

impl OwnDrafts {
    /// The blocks with room for their entries, in `states` as [`OwnDrafts::states`] makes them.
    pub(in crate::stage) fn new(
        spec: &ModelSpec,
        mut blocks: Vec<DraftBlock>,
        states: Vec<BlockState>,
        device: &Device,
        config: &StageConfig,
    ) -> Option<Self> {
        let drafts = spec.own_drafts.as_ref()?;
        let of_blocks = blocks.iter_mut().flat_map(|block| &mut block.blocks);
        of_blocks.zip(states).for_each(|(block, state)| block.state = state);
        let n_slots = config.n_slots;
        Some(Self {
            depth: drafts.depth(MAX_DRAFTED),
            reads: drafts.reads,
            n_ctx: spec.max_positions().unwrap_or(u32::MAX).min(config.n_ctx),
            has_rings: drafts.has_rings(),
            ring: Ring::new(device, n_slots, spec.n_embd * drafts.reads.n_streams()),
            readings: Readings::default(),
            seen: Sequences::new(n_slots, config.n_blocks, Prefixes::All, false),
            watched: None,
            blocks,
        })
    }

    /// Room for the entries of all blocks of a model, in order; none where none is loaded.
    pub(in crate::stage) fn states(
        are_loaded: bool,
        spec: &ModelSpec,
        device: &Device,
        config: &StageConfig,
    ) -> Result<Vec<BlockState>, ModelError> {
        // A window is attended with, and all pages are kept: entries may be written over anywhere.
        let room = StateRoom { windows: false, ..room(config) };
        let loaded = spec.own_drafts.iter().filter(|_| are_loaded);
        let heads = loaded.flat_map(|drafts| &drafts.heads);
        let blocks = heads.flat_map(|head| &head.layer.blocks);
        blocks.map(|block| BlockState::new(device, &block.kind, &room)).collect()
    }

    /// The weights of all blocks of a model.
    pub(in crate::stage) fn load_all(
        spec: &ModelSpec,
        source: &Arc<dyn TensorSource>,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Vec<DraftBlock>, ModelError> {
        let Some(drafts) = &spec.own_drafts else { return Ok(Vec::new()) };
        let heads = drafts.heads.iter().enumerate();
        heads.map(|(i, head)| load_block(spec, i, head, drafts.reads, source, loader)).collect()
    }

    /// Weights of the blocks alone.
    pub(in crate::stage) fn into_blocks(mut self) -> Vec<DraftBlock> {
        let blocks = self.blocks.iter_mut().flat_map(|block| &mut block.blocks);
        blocks.for_each(|block| block.state = BlockState::None);
        self.blocks
    }
}

/// The weights of block `i`.
fn load_block(
    spec: &ModelSpec,
    i: usize,
    head: &DraftHeadSpec,
    reads: DraftInput,
    source: &Arc<dyn TensorSource>,
    loader: &mut WeightLoader<'_>,
) -> Result<DraftBlock, ModelError> {
    let (n_embd, n_vocab, eps) = (spec.n_embd, spec.n_vocab, spec.head.eps);
    let stem = format!("blk.{}", head.in_file);
    let name = |part: &str| format!("{stem}.nextn.{part}.weight");
    let embedding = if head.own_embedding { name("embed_tokens") } else { TOKEN_EMBD.to_owned() };
    let embedding = loader.reference(&embedding, &[n_embd, n_vocab])?;
    let embedding = Embedding::new(source.clone(), embedding, n_embd, n_vocab)?;
    let usual = (spec.skeleton.norm, eps);
    let mut norm = |name: &str, (kind, eps)| Norm::load(loader, kind, name, n_embd, eps);
    let norms = [norm(&name("enorm"), usual)?, norm(&name("hnorm"), usual)?];
    let head_norm = norm(&head.norm, head.own_norm.unwrap_or(usual))?;
    let merge = match reads {
        DraftInput::Streams(_) => residual::load_merge(spec, loader)?,
        DraftInput::Normed | DraftInput::Stream => None,
    };
    let head_read = HeadInput::new(Some(head_norm), merge);
    let join = Linear::matrix(loader, &name("eh_proj"), n_embd, 2 * n_embd)?;
    let output = if head.own_output {
        Some(Linear::matrix(loader, &name("shared_head_head"), n_vocab, n_embd)?)
    } else {
        None
    };
    // Some files have a norm more than is needed.
    loader.taken_before(&format!("{stem}.layer_output_norm.weight"));
    let layer = spec.n_layer() + i;
    // They are few, and drafts are to be fast.
    loader.at_layer(usize::MAX);
    let weights = load_blocks(spec, &head.layer, layer, &stem, loader)?;
    let blocks = loaded(&head.layer, layer, weights).collect();
    let n_streams = reads.n_streams();
    Ok(DraftBlock { embedding, norms, join, blocks, head_read, n_streams, output })
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
        number: index,
        spec: of_layer.blocks[index].clone(),
        weights,
        state: BlockState::None,
        behind: Vec::new(),
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
    if spec.own_drafts.is_none() {
        return Ok(());
    }
    let device = Device::cpu(kernels::select(None)?, 1, None)?;
    let source: Arc<dyn TensorSource> = Arc::new(Nothing);
    let mut no_progress = |_| {};
    let mut loader = WeightLoader::new(model, source.as_ref(), &device, &mut no_progress)
        .sharing(source.clone())
        .with_switched(switched(spec))
        .hollow();
    OwnDrafts::load_all(spec, &source, &mut loader)?;
    loader.finish(&own_draft_tensors(model, spec))
}

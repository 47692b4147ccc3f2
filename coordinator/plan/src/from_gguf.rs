//! Reads the planner's facts about a model from its header. No tensor data is read.
//!
//! Layers are those of the architecture. Their bytes are those of the weights as the kernels hold them, and their
//! operations follow from the sizes of their matrices, each counted for the class of its type. The size of a block's state comes from its [`StateSpec`], so
//! nothing here can tell attention from Mamba.

use brigade_engine::kernels::{KernelError, KvType, PackedMatrix};
use brigade_gguf::adapters::of_model;
use brigade_gguf::{Gguf, TensorInfo};
use brigade_spec::{
    BlockSpec, DraftHeadSpec, LAYER_ROW_TABLE, ModelError, ModelSpec, OUTPUT, OwnDraftsSpec,
    POSITION_EMBD, StateSpec, TOKEN_EMBD, TOKEN_TYPES, heads,
};

use brigade_worker::backend::product_class::{ByClass, ProductClass};
use brigade_worker::backend::visiting_experts::matrices_of;
use brigade_worker::backend::work_memory::{LoadingMemory, WorkMemory, active_share};

use super::facts::{DraftFacts, LayerFacts, ModelFacts};
use super::stored::StoredFacts;

impl ModelFacts {
    /// Facts of `model` with a KV cache of type `kv`.
    ///
    /// # Errors
    /// An architecture or tensor type that is not supported, or contradictory metadata.
    pub fn from_gguf(model: &Gguf, kv: KvType) -> Result<Self, ModelError> {
        let spec = brigade_models::describe(model)?;
        let mut layers: Vec<LayerFacts> =
            spec.layers.iter().map(|l| state_of(&l.blocks, kv)).collect();
        for (layer, facts) in layers.iter_mut().enumerate() {
            let first = spec.layers_of(spec.in_file(layer)).next();
            facts.same_weights = first.filter(|&first| first < layer);
        }
        let (mut embedding_bytes, mut last_stage) = (0, 0);
        for tensor in model.tensors() {
            match brigade_spec::layer_of(&tensor.name) {
                // No stage loads a block of multi-token prediction here. `describe` refuses layers beyond those that
                // the metadata count.
                Some(in_file) => {
                    let is_left_out = |layer| spec.leaves_out(layer, of_model(&tensor.name).0);
                    for layer in spec.layers_of(in_file).filter(|&layer| !is_left_out(layer)) {
                        let share = active_share(&spec, layer, &tensor.name);
                        add(&mut layers[layer], tensor, share)?;
                        if spec.layers[layer].is_of_experts(&tensor.name) {
                            layers[layer].routed_bytes += packed_bytes(tensor)?;
                            let all = &mut layers[layer].expert_matrices;
                            let free = all.iter_mut().filter(|bytes| **bytes == 0);
                            free.zip(matrices_of(tensor)?).for_each(|(to, bytes)| *to = bytes);
                            let class = ProductClass::of(tensor.ty);
                            layers[layer].routed_elements[class] += elements(tensor, share);
                        }
                    }
                }
                // A layer reads a few rows of it for each token, where the file has them: no memory is kept for it.
                None if spec.is_of_a_layer(&tensor.name) => {}
                None if [TOKEN_EMBD, LAYER_ROW_TABLE].contains(&&*tensor.name) => {
                    embedding_bytes += tensor.nbytes;
                }
                None if of_model(&tensor.name).0 == TOKEN_EMBD
                    || brigade_spec::is_of_input(&tensor.name, &spec) =>
                {
                    embedding_bytes += packed_bytes(tensor)?;
                }
                // Tensors for images or sounds are not loaded.
                None if brigade_spec::is_of_other_senses(&tensor.name) => {}
                // The coordinator has the heads that judge texts, or make vectors of them.
                None if heads::has(&tensor.name) => {}
                // No stage of an encoder makes logits.
                None if tensor.name == OUTPUT && spec.is_encoder() => {}
                None => last_stage += packed_bytes(tensor)?,
            }
        }
        Ok(Self {
            name: model.meta().opt_str("general.name")?.unwrap_or(model.name()).to_owned(),
            embedding_bytes,
            ..ends(model, &spec, layers, last_stage)?
        })
    }
}

impl DraftFacts {
    /// The facts of a model, with its own drafting blocks if it has some.
    ///
    /// # Errors
    /// As [`ModelFacts::from_gguf`].
    pub fn from_gguf(model: &Gguf, kv: KvType) -> Result<Self, ModelError> {
        let spec = brigade_models::describe(model)?;
        let Some(own) = &spec.own_drafts else { return Ok(Self::default()) };
        let mut all = LayerFacts::default();
        let mut embedding_bytes = 0;
        for tensor in brigade_spec::own_draft_tensors(model, &spec) {
            if tensor.name == TOKEN_EMBD {
                embedding_bytes = tensor.nbytes;
                continue;
            }
            let blocks = own.heads.iter().flat_map(|head| &head.layer.blocks);
            let share = blocks.map(|block| block.kind.active_share(&tensor.name));
            add(&mut all, tensor, share.fold(1.0, f64::min))?;
        }
        Ok(Self {
            weight_bytes: all.weight_bytes + embedding_bytes,
            elements: all.elements,
            entry_elements: entry_elements(&spec, own).min(all.elements.sum()),
            kv_bytes: (own.n_blocks() * own.state().bytes_per_token(kv)) as u64,
            state_bytes: own.bytes_per_sequence(spec.n_embd) as u64,
        })
    }
}

/// Weights that a row is multiplied with in order to enter the drafting blocks' state: the matrix that joins two
/// rows, and those of keys and values.
fn entry_elements(spec: &ModelSpec, own: &OwnDraftsSpec) -> u64 {
    let of_head = |head: &DraftHeadSpec| {
        let last =
            head.layer.blocks.iter().rev().find(|block| block.kind.state() != StateSpec::None);
        let kept = last.map_or(Some(0), |block| block.kind.elements_to_remember(spec.n_embd))?;
        Some((2 * spec.n_embd * spec.n_embd * own.reads.n_streams() + kept) as u64)
    };
    // One of another kind computes such rows as any other.
    own.heads.iter().map(of_head).sum::<Option<u64>>().unwrap_or(u64::MAX)
}

/// The facts outside the layers but for the embedding's bytes: head, cuts.
fn ends(
    model: &Gguf,
    spec: &ModelSpec,
    layers: Vec<LayerFacts>,
    last_stage: u64,
) -> Result<ModelFacts, ModelError> {
    let embedding = model.require(TOKEN_EMBD)?;
    let tied = brigade_spec::is_tied(model, spec);
    // Tied, the last stage packs a head from the embedding's bytes.
    let head_bytes = last_stage + if tied { packed_bytes(embedding)? } else { 0 };
    let head_width = if spec.is_encoder() { 0 } else { spec.n_vocab };
    let head = ProductClass::of(model.tensor(OUTPUT).unwrap_or(embedding).ty);
    let WorkMemory { row_bytes, logits_bytes } = WorkMemory::of(model, spec);
    let cut = |cut| if cut == 0 { 0 } else { 4 * spec.boundary(cut).width() as u64 };
    Ok(ModelFacts {
        name: String::new(),
        cut_bytes: (0..layers.len()).map(cut).collect(),
        layers,
        embedding_bytes: 0,
        head_bytes,
        head_elements: ByClass::only(head, (spec.n_embd * head_width) as u64),
        drafts: DraftFacts::default(),
        scratch_bytes_per_row: row_bytes,
        logits_bytes,
        loading: LoadingMemory::of(model, spec),
        n_ctx_train: spec.n_ctx_train,
        stored: StoredFacts::default(),
    })
}

/// The facts of a layer with its state only; the caller adds weights and costs.
fn state_of(blocks: &[BlockSpec], kv: KvType) -> LayerFacts {
    let sum = |bytes: &dyn Fn(StateSpec) -> usize| {
        blocks.iter().map(|block| bytes(block.kind.state()) as u64).sum()
    };
    LayerFacts {
        kv_bytes: sum(&|state| state.bytes_per_token(kv)),
        kv_small_bytes: sum(&|state| state.bytes_per_token(KvType::Q8_0)),
        conv_bytes: sum(&|state| state.conv_bytes()),
        scan_bytes: sum(&|state| state.scan_bytes()),
        expert_share: 1.0,
        window: blocks.iter().find_map(|block| block.kind.window()),
        ..LayerFacts::default()
    }
}

fn add(layer: &mut LayerFacts, tensor: &TensorInfo, share: f64) -> Result<(), ModelError> {
    let bytes = packed_bytes(tensor)?;
    layer.weight_bytes += bytes;
    if share < 1.0 {
        layer.expert_bytes += bytes;
        layer.expert_share = share;
    }
    layer.elements[ProductClass::of(tensor.ty)] += elements(tensor, share);
    Ok(())
}

/// Elements that a row multiplies with: vectors (norms, biases) and tables are read only.
fn elements(tensor: &TensorInfo, share: f64) -> u64 {
    if tensor.n_dims > 1 && !brigade_spec::has_token_rows(&tensor.name) {
        (tensor.n_elems() as f64 * share).round() as u64
    } else {
        0
    }
}

/// Bytes of a tensor as the kernels hold it: matrices packed, vectors and rows of positions in f32.
fn packed_bytes(tensor: &TensorInfo) -> Result<u64, ModelError> {
    let rows = [POSITION_EMBD, TOKEN_TYPES].contains(&&*tensor.name)
        || brigade_spec::has_token_rows(&tensor.name);
    if tensor.n_dims < 2 || rows {
        return Ok(4 * tensor.n_elems() as u64);
    }
    let [cols, rows] = [tensor.ne[0], tensor.ne[1]];
    let matrices: usize = tensor.ne[2..].iter().product();
    let bytes = PackedMatrix::packed_bytes(tensor.ty, rows, cols).map_err(|error| match error {
        KernelError::Unsupported(ty) => ModelError::Unsupported(format!("{ty} in {}", tensor.name)),
        other => ModelError::Kernel(other),
    })?;
    Ok(bytes * matrices as u64)
}

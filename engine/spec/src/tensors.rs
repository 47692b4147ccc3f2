//! The tensors of a model that a stage reads, and their uses.

use std::ops::Range;

use brigade_gguf::adapters::{HALVES, of_model};
use brigade_gguf::{Gguf, TensorInfo};

use super::names::{
    ALTUP_PROJ, EMBEDDING_NORM, LAYER_ROWS, LOW_START, OUTPUT, OUTPUT_NORM, POSITION_EMBD,
    TOKEN_EMBD, TOKEN_EXPERTS, TOKEN_TYPES, is_of_other_senses, layer_of,
};
use super::{Beside, ModelSpec, Passes, heads};

/// Most adapters of a model.
pub const MAX_ADAPTERS: usize = 64;

/// The tensors that a stage of `layers` reads. These are its blocks and the shared rotary factors. The first stage
/// has the embedding. The last has norm and head, which are the embedding again where they are tied. Changes by
/// adapters belong to the tensors that they change. A reranker's head is left out: the receiver of the last stage's
/// rows reads it. Tensors for images and sounds are left out too.
pub fn stage_tensors<'m>(
    model: &'m Gguf,
    spec: &ModelSpec,
    layers: &Range<usize>,
) -> Vec<&'m TensorInfo> {
    let (first, last) = (layers.start == 0, layers.end == spec.n_layer());
    let tied = is_tied(model, spec);
    let wanted = |name: &str, of_adapter: bool| match layer_of(name) {
        Some(in_file) => layers.clone().any(|layer| spec.reads(layer, in_file, name)),
        None if spec.is_of_a_layer(name) => layers.clone().any(|layer| spec.shares(layer, name)),
        // Tied, the head is the embedding without what adapters add to that.
        None if name == TOKEN_EMBD => first || (last && tied && !of_adapter),
        None if name.starts_with("rope_") => true,
        None if heads::has(name) || is_of_other_senses(name) => false,
        None if name == OUTPUT => last && !spec.is_encoder(),
        None if name == OUTPUT_NORM => last || spec.pass_norm(layers) == Some(OUTPUT_NORM),
        None if is_of_input(name, spec) => first,
        None => last,
    };
    let wanted = |tensor: &&TensorInfo| {
        let (name, of_adapter) = of_model(&tensor.name);
        wanted(name, of_adapter)
    };
    model.tensors().iter().filter(wanted).collect()
}

/// The tensors that the last stage reads for its blocks of drafts: theirs, and the embedding, of which it reads rows. None
/// where the model has no such blocks. A block may have one of them that it does not need.
pub fn own_draft_tensors<'m>(model: &'m Gguf, spec: &ModelSpec) -> Vec<&'m TensorInfo> {
    let Some(drafts) = &spec.own_drafts else { return Vec::new() };
    let embeds = drafts.heads.iter().any(|head| !head.own_embedding);
    let wanted = |tensor: &&TensorInfo| match of_model(&tensor.name) {
        (TOKEN_EMBD, of_adapter) => embeds && !of_adapter,
        (name, _) => drafts.reads(name),
    };
    model.tensors().iter().filter(wanted).collect()
}

/// [`stage_tensors`] of a stage of `layers` that may have the model's own blocks of drafts, in the order of the file.
pub fn stage_tensors_with_drafts<'m>(
    model: &'m Gguf,
    spec: &ModelSpec,
    layers: &Range<usize>,
    own_drafts: bool,
) -> Vec<&'m TensorInfo> {
    let mut tensors = stage_tensors(model, spec, layers);
    if own_drafts && layers.end == spec.n_layer() {
        let of_drafts = own_draft_tensors(model, spec);
        let all = model.tensors().iter();
        let is_in = |list: &[&TensorInfo], t: &TensorInfo| list.iter().any(|o| o.name == t.name);
        tensors = all.filter(|t| is_in(&tensors, t) || is_in(&of_drafts, t)).collect();
    }
    tensors
}

/// Whether the head computes with the embedding's matrix. An encoder's has none.
pub fn is_tied(model: &Gguf, spec: &ModelSpec) -> bool {
    model.tensor(OUTPUT).is_none() && !spec.is_encoder()
}

/// Whether the first stage needs the tensor besides the embedding, to make rows of tokens.
pub fn is_of_input(name: &str, spec: &ModelSpec) -> bool {
    let skeleton = &spec.skeleton;
    // Elsewhere the norm's name is that of the norm before the head.
    (skeleton.learned_positions && name == POSITION_EMBD)
        || (skeleton.token_types > 0 && name == TOKEN_TYPES)
        || (skeleton.embedding_norm.is_some() && name.starts_with(EMBEDDING_NORM))
        || (matches!(skeleton.passes, Passes::Stacks(_)) && name == LOW_START)
        || (matches!(skeleton.beside, Beside::ForLayers { .. })
            && (name.starts_with(LAYER_ROWS) || name == ALTUP_PROJ))
}

/// Whether a tensor of a model's directory has the rows that an adapter adds for tokens, or their experts: in memory four
/// bytes each, where they are looked up.
pub fn has_token_rows(tensor: &str) -> bool {
    let of_adapter = of_model(tensor) == (TOKEN_EMBD, true) && tensor.contains(HALVES[0]);
    of_adapter || tensor.ends_with(TOKEN_EXPERTS)
}

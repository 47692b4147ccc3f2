//! Tensors by their names: what they are called outside the layers, which layer they belong to, and which of them a stage
//! reads.

use std::ops::Range;

use brigade_gguf::adapters::{HALVES, of_model};
use brigade_gguf::{Gguf, TensorInfo};

use super::{Beside, ModelSpec, Passes, heads};

/// Name of the embedding matrix.
pub const TOKEN_EMBD: &str = "token_embd.weight";
/// Name of the head matrix; where it is missing the embedding serves.
pub const OUTPUT: &str = "output.weight";
/// Name of the norm before the head.
pub const OUTPUT_NORM: &str = "output_norm.weight";

/// Name of the row for all tokens that the low of two stacks begins with, where a model has such ([`StackSpec`]).
pub const LOW_START: &str = "hrm.z_l_init";
/// Name of the table of positions' rows, where a model has one.
pub const POSITION_EMBD: &str = "position_embd.weight";
/// Begins the names of all tensors of a file that has an encoder's beside a decoder's.
pub(crate) const ENCODER_PREFIX: &str = "enc.";
/// Name of the table of token types' rows, where a model has one.
pub const TOKEN_TYPES: &str = "token_types.weight";
/// Name of the matrices that make a token's other streams of the first, where a model has several.
pub const ALTUP_PROJ: &str = "altup_proj.weight";
/// Ends the names of tables that choose the experts of each token.
pub const TOKEN_EXPERTS: &str = "ffn_gate_tid2eid.weight";
/// Begins the names of all tensors that make the layers' own rows of a token.
pub const LAYER_ROWS: &str = "per_layer_";
/// Name of the table of tokens' rows for all layers, where a model has one.
pub const LAYER_ROW_TABLE: &str = "per_layer_token_embd.weight";
/// Stem of the norm after the embedding, where a model has one.
pub const EMBEDDING_NORM: &str = "token_embd_norm.";

/// Most adapters of a model.
pub const MAX_ADAPTERS: usize = 64;

/// The layer a tensor belongs to: 7 for `blk.7.attn_q.weight`, `None` outside the layers.
pub fn layer_of(tensor: &str) -> Option<usize> {
    tensor
        .strip_prefix(ENCODER_PREFIX)
        .unwrap_or(tensor)
        .strip_prefix("blk.")?
        .split_once('.')?
        .0
        .parse()
        .ok()
}

/// The tensors that a stage of `layers` reads: its blocks, the shared rotary factors, the embedding
/// on the first stage, norm and head on the last (the embedding again where they are tied), and what adapters have for
/// them. A reranker's head is for whoever has the last stage's rows.
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
        None if heads::has(name) => false,
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

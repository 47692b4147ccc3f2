//! Tensors by their names: what they are called outside the layers, and which layer they belong to.

/// Name of the embedding matrix.
pub const TOKEN_EMBD: &str = "token_embd.weight";
/// Name of the head matrix; where it is missing the embedding serves.
pub const OUTPUT: &str = "output.weight";
/// Name of the norm before the head.
pub const OUTPUT_NORM: &str = "output_norm.weight";

/// Name of the row for all tokens that the low of two stacks begins with, where a model has such
/// ([`StackSpec`](crate::StackSpec)).
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

/// Begins the names of tensors of what reads images and sounds, and of what takes that over to the text model. Files of
/// some programs have them beside the text model's.
const OTHER_SENSES: [&str; 5] = ["v.", "a.", "s.", "mm.", "resampler."];

/// Whether a tensor is for images or sounds, so that it is left where it is: a model runs on texts alone here.
pub fn is_of_other_senses(tensor: &str) -> bool {
    OTHER_SENSES.iter().any(|stem| tensor.starts_with(stem))
}

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

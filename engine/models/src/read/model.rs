//! The usual parts around a model's layers.

use brigade_spec::{HeadSpec, LayerSpec, ModelError, ModelSpec, Skeleton, TOKEN_EMBD};

use super::hparams::Hparams;

/// A model with the usual parts around `layers`. Nothing is scaled or rotated, and the norm before the head has the
/// epsilon `eps`. Sizes are those of the metadata.
///
/// # Errors
/// The vocabulary's or the context's size is missing or absurd.
pub(crate) fn usual(
    hp: &Hparams<'_>,
    layers: Vec<LayerSpec>,
    eps: f32,
) -> Result<ModelSpec, ModelError> {
    Ok(ModelSpec {
        arch: hp.arch().to_owned(),
        n_embd: hp.n_embd(),
        n_vocab: hp.n_vocab(TOKEN_EMBD)?,
        n_ctx_train: hp.need_u32("context_length")?,
        embedding_scale: 1.0,
        rope: None,
        local_rope: None,
        layers,
        head: HeadSpec::usual(eps),
        skeleton: Skeleton::default(),
        own_drafts: None,
        own_drafts_refused: None,
    })
}

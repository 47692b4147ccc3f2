//! `gpt2`, `starcoder`, `bloom`, `mpt` and `jais`: LayerNorms, one tensor for queries, keys and values, and nothing
//! rotated. Where a token stands is told by rows that are added to the embedding (gpt2 and starcoder), or by scores
//! that fall with the distance (bloom and jais). mpt has either.

use brigade_spec::{
    Activation, Alibi, AttentionSpec, Beside, KvSpec, ModelError, ModelSpec, NormKind,
    POSITION_EMBD, Passes, ScoreSpec, Skeleton, Streams,
};

use crate::read::attention::attention_spec;
use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder};

/// Describes `gpt2` and `starcoder`.
pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let skeleton = Skeleton { learned_positions: true, ..LAYER_NORMS };
    build(hp, skeleton, Activation::Gelu, |attention| attention)
}

/// A LayerNorm between embedding and layers.
pub(super) fn describe_bloom(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let skeleton = Skeleton { embedding_norm: Some(NormKind::Layer), ..LAYER_NORMS };
    build(hp, skeleton, Activation::Gelu, |attention| AttentionSpec {
        scores: ScoreSpec { alibi: Some(Alibi::USUAL), ..ScoreSpec::default() },
        ..attention
    })
}

/// Norms and projections with or without biases; queries, keys and values may be clamped.
pub(super) fn describe_mpt(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    if hp.has_tensor("blk.0.attn_q_norm.weight") {
        let why = "mpt with norms of queries and keys (llama.cpp does not compute it either)";
        return Err(ModelError::Unsupported(why.to_owned()));
    }
    let alibi = alibi(hp)?;
    let clamp = hp.f32("attention.clamp_kqv")?.filter(|&bound| bound > 0.0);
    let norm =
        if hp.has_tensor("output_norm.bias") { NormKind::Layer } else { NormKind::LayerUnbiased };
    let learned_positions = hp.has_tensor(POSITION_EMBD);
    let skeleton = Skeleton { norm, learned_positions, ..Skeleton::default() };
    build(hp, skeleton, Activation::Gelu, |attention| AttentionSpec {
        kv: KvSpec { clamp, ..attention.kv },
        scores: ScoreSpec { alibi, ..ScoreSpec::default() },
        ..attention
    })
}

/// Gated FFNs with biases; scores are divided by the width of a head, not by its root.
pub(super) fn describe_jais(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let alibi = alibi(hp)?;
    build(hp, LAYER_NORMS, Activation::SwiGlu, |attention| {
        let scale = 1.0 / attention.head_dim_k as f32;
        let scores = ScoreSpec { alibi, ..ScoreSpec::default() };
        AttentionSpec { scores, scale, ..attention }
    })
}

const LAYER_NORMS: Skeleton = Skeleton {
    norm: NormKind::Layer,
    embedding_norm: None,
    token_types: 0,
    encoder_names: false,
    learned_positions: false,
    left_out: None,
    beside: Beside::Nothing,
    streams: Streams::One,
    passes: Passes::Once,
    switch: None,
};

/// `attention.max_alibi_bias`; `None` where it is missing or 0.
fn alibi(hp: &Hparams<'_>) -> Result<Option<Alibi>, ModelError> {
    let max_bias = hp.f32("attention.max_alibi_bias")?.filter(|&bias| bias > 0.0);
    Ok(max_bias.map(|max_bias| Alibi { max_bias }))
}

fn build(
    hp: &Hparams<'_>,
    skeleton: Skeleton,
    activation: Activation,
    attention: impl Fn(AttentionSpec) -> AttentionSpec,
) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let layer = |il: usize| {
        let attention = attention(attention_spec(hp, il)?);
        Ok(decoder::layer(eps, attention, FFN_NORM, decoder::dense(hp, il, activation)?))
    };
    Ok(ModelSpec { skeleton, ..decoder::model(hp, eps, None, layer)? })
}

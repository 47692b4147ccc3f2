//! `bert`, `nomic-bert`, `nomic-bert-moe`, `jina-bert-v2` and `jina-bert-v3`: each block reads the residual stream as it
//! is, and the sum of both is normed. They differ in how a token's place is told (rows of positions, rotation, scores
//! that fall with the distance) and in the FFN.

use brigade_spec::{
    Activation, Alibi, AttentionSpec, BlockKind, BlockSpec, LayerSpec, MlpSpec, ModelError,
    ModelSpec, MoeSpec, NormOver, NormedSpec, QkNorm, Residual, Rotation, ScoreSpec, Skeleton,
};

use crate::read::{Hparams, decoder, encoder, experts};
use brigade_shapes::RopeLayout;

/// The norm after attention.
const ATTN_OUTPUT_NORM: &str = "attn_output_norm.weight";
/// The norm after the FFN.
const LAYER_OUTPUT_NORM: &str = "layer_output_norm.weight";
/// A second norm after attention.
const ATTN_NORM_2: &str = "attn_norm_2.weight";

/// Learned positions, an FFN without a gate.
pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let spec = build(hp, Rotation::None, |il, attention| {
        Ok((attention, decoder::dense(hp, il, Activation::Gelu)?))
    })?;
    Ok(ModelSpec { skeleton: Skeleton { learned_positions: true, ..spec.skeleton }, ..spec })
}

/// nomic-bert: BERT with rotation and SwiGLU.
pub(super) fn describe_nomic(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, Rotation::Model, |il, attention| {
        Ok((attention, decoder::dense(hp, il, Activation::SwiGlu)?))
    })
}

/// Rotation; experts in every so many layers, the second of them first.
pub(super) fn describe_nomic_moe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let every = hp.u32("moe_every_n_layers")?.unwrap_or(0) as usize;
    build(hp, Rotation::Model, |il, attention| {
        let ffn = if every > 0 && il % every == 1 {
            BlockKind::Moe(MoeSpec {
                activation: Activation::Gelu,
                norm_weights: false,
                weights_scale: hp.expert_weights_scale()?,
                ..experts::read(hp, il, |_| decoder::n_ff(hp, il).unwrap_or(0))?
            })
        } else {
            decoder::dense(hp, il, Activation::Gelu)?
        };
        Ok((attention, ffn))
    })
}

/// Scores that fall with the distance. The FFN has a gate, in a tensor of its own or above the way up, or none. Models
/// for code have norms of queries and keys, and a second norm after attention.
pub(super) fn describe_jina_2(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    build(hp, Rotation::None, |il, attention| {
        let has = |tensor: &str| hp.has_tensor(&format!("blk.{il}.{tensor}.weight"));
        let norm = QkNorm { eps, over: NormOver::AllHeadsLayer, after_rotation: false };
        let qk_norm = has("attn_q_norm").then_some(norm);
        let n_ff = decoder::n_ff(hp, il)?;
        let fused = hp.rows_of(&format!("blk.{il}.ffn_up.weight")) == Some(2 * n_ff);
        let activation =
            if has("ffn_gate") || fused { Activation::GeGlu } else { Activation::Gelu };
        let ffn = MlpSpec { fused, ..MlpSpec::new(n_ff, activation) };
        let scores = ScoreSpec { alibi: Some(Alibi::USUAL), ..ScoreSpec::default() };
        let attention = AttentionSpec { scores, qk_norm, ..attention };
        Ok((attention, BlockKind::Mlp(ffn)))
    })
}

/// Rotation, an FFN without a gate.
pub(super) fn describe_jina_3(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, Rotation::Model, |il, attention| {
        Ok((attention, decoder::dense(hp, il, Activation::Gelu)?))
    })
}

fn build(
    hp: &Hparams<'_>,
    rotation: Rotation,
    layer: impl Fn(usize, AttentionSpec) -> Result<(AttentionSpec, BlockKind), ModelError>,
) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let rope = match rotation {
        Rotation::None => None,
        Rotation::Model | Rotation::Local => Some(decoder::rope(hp, RopeLayout::Neox)?),
    };
    let spec = decoder::model(hp, eps, rope, |il| {
        let (attention, ffn) = layer(il, encoder::attention(hp, il, rotation)?)?;
        let attention = BlockKind::Attention(attention);
        let again = hp.has_tensor(&format!("blk.{il}.{ATTN_NORM_2}")).then_some(ATTN_NORM_2);
        let block = |norm, again, kind| BlockSpec {
            residual: Residual::Normed(NormedSpec { norm, again, eps }),
            ..BlockSpec::bare(kind)
        };
        let attention = block(ATTN_OUTPUT_NORM, again, attention);
        Ok(LayerSpec { blocks: vec![attention, block(LAYER_OUTPUT_NORM, None, ffn)] })
    })?;
    let skeleton = encoder::bert_skeleton(hp);
    Ok(ModelSpec { skeleton, ..encoder::without_last_norm(spec) })
}

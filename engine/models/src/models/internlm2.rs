//! `internlm2`, `xverse`, `exaone`, `pangu-embedded`, `arcee`, `chatglm`, `minicpm` and `olmo`: llama's block, in
//! which each of them changes the rotation, the FFN, the scales or the norms.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, HeadSpec, KvSpec, MlpSpec, ModelError, ModelSpec,
    NormKind, RopeSpec, Skeleton,
};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

/// Describes `internlm2` and `xverse`.
pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, decoder::rope_with_factors(hp, RopeLayout::Norm)?, Activation::SwiGlu)
}

pub(super) fn describe_exaone(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, decoder::rope_with_factors(hp, RopeLayout::Neox)?, Activation::SwiGlu)
}

/// NEOX rotation without tensors of factors, biases.
pub(super) fn describe_pangu(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, decoder::rope(hp, RopeLayout::Neox)?, Activation::SwiGlu)
}

pub(super) fn describe_arcee(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, decoder::rope_with_factors(hp, RopeLayout::Norm)?, Activation::ReluSquared)
}

fn build(
    hp: &Hparams<'_>,
    rope: RopeSpec,
    activation: Activation,
) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let ffn = decoder::dense(hp, il, activation)?;
        Ok(decoder::layer(eps, decoder::attention(hp, il)?, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, rope, layer)
}

/// A fused way up, rotation of a part of each head.
pub(super) fn describe_chatglm(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
        let ffn = MlpSpec { fused: true, ..MlpSpec::swiglu(decoder::n_ff(hp, il)?) };
        Ok(decoder::layer(eps, attention, FFN_NORM, BlockKind::Mlp(ffn)))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Norm)?, layer)
}

/// Granite's scales with defaults of their own.
pub(super) fn describe_minicpm(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let rope = decoder::rope_with_factors(hp, RopeLayout::Norm)?;
    let mut spec = build(hp, rope, Activation::SwiGlu)?;
    let residual = hp.f32("residual_scale")?.unwrap_or(1.4 / (hp.n_layer() as f32).sqrt());
    for block in spec.layers.iter_mut().flat_map(|layer| &mut layer.blocks) {
        block.residual = decoder::scaled_output(residual);
    }
    let logit_scale = hp.f32("logit_scale")?.unwrap_or(256.0 / hp.n_embd() as f32);
    let embedding_scale = hp.f32("embedding_scale")?.unwrap_or(12.0);
    let head = HeadSpec { logit_scale: 1.0 / logit_scale, ..spec.head.clone() };
    Ok(ModelSpec { embedding_scale, head, ..spec })
}

/// LayerNorms without weights; queries, keys and values may be clamped. (arXiv 2402.00838.)
pub(super) fn describe_olmo(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let clamp = hp.f32("attention.clamp_kqv")?.filter(|&bound| bound > 0.0);
    let layer = |il: usize| {
        let kv = KvSpec { clamp, ..KvSpec::default() };
        let attention = AttentionSpec { kv, output_bias: false, ..decoder::attention(hp, il)? };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    let spec = decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Norm)?, layer)?;
    let skeleton = Skeleton { norm: NormKind::LayerUnweighted, ..spec.skeleton.clone() };
    Ok(ModelSpec { skeleton, ..spec })
}

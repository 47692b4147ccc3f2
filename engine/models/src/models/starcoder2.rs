//! `starcoder2`, `codeshell`, `orion`, `nemotron` and `jais2`: LayerNorm with bias, and NEOX rotation. The first two
//! have GELU without a gate, and biases everywhere. orion has SwiGLU. nemotron and jais2 have squared ReLUs;
//! nemotron rotates a part of each head.

use brigade_spec::{Activation, AttentionSpec, ModelError, ModelSpec, NormKind, Skeleton};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

/// Describes `starcoder2` and `codeshell`.
pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, Activation::Gelu, true)
}

pub(super) fn describe_orion(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, Activation::SwiGlu, false)
}

/// Describes `nemotron` and `jais2`.
pub(super) fn describe_nemotron(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, Activation::ReluSquared, true)
}

fn build(
    hp: &Hparams<'_>,
    activation: Activation,
    output_bias: bool,
) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let layer = |il: usize| {
        let attention = AttentionSpec { output_bias, ..decoder::attention(hp, il)? };
        Ok(decoder::layer(eps, attention, FFN_NORM, decoder::dense(hp, il, activation)?))
    };
    let spec = decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)?;
    let skeleton = Skeleton { norm: NormKind::Layer, ..spec.skeleton.clone() };
    Ok(ModelSpec { skeleton, ..spec })
}

//! `command-r` and `cohere2`. Both have LayerNorm without bias, and attention and FFN that read the same
//! normed rows. They have NORM rotation, and they scale the logits.
//!
//! Large command-r models norm each head of q and k. In cohere2, three layers with rotation and a window are
//! followed by one without either.

use super::decoder::{self, ATTN_NORM, Windows};
use super::{
    Activation, AttentionSpec, BlockKind, BlockSpec, HeadSpec, Hparams, LayerSpec, ModelSpec,
    NormKind, NormOver, QkNorm, Reads, Rotation, Skeleton,
};
use crate::error::ModelError;
use crate::kernels::RopeLayout;

/// Layers from which on command-r models norm q and k.
const QK_NORM_LAYERS: usize = 64;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let qk_norm = (hp.n_layer() >= QK_NORM_LAYERS)
        .then_some(QkNorm { over: NormOver::HeadLayer, ..QkNorm::heads(eps) });
    let layer =
        |il: usize| layer(hp, eps, il, AttentionSpec { qk_norm, ..decoder::attention(hp, il)? });
    let spec = decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Norm)?, layer)?;
    around(hp, spec)
}

pub(super) fn describe_2(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let rope = decoder::rope_with_factors(hp, RopeLayout::Norm)?;
    let window = hp.need_u32("attention.sliding_window")?;
    let windows = Windows::read(hp, Some(window), 4, &rope, rope.clone())?;
    if windows.local_rope.is_some() {
        return Err(hp.bad("rope.freq_base_swa", "cohere2 rotates by rope.freq_base alone"));
    }
    let layer = |il: usize| {
        let attention = windows.apply(il, decoder::attention(hp, il)?);
        let rotation = if windows.has(il) { Rotation::Model } else { Rotation::None };
        layer(hp, eps, il, AttentionSpec { rotation, ..attention })
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    around(hp, spec)
}

fn layer(
    hp: &Hparams<'_>,
    eps: f32,
    il: usize,
    attention: AttentionSpec,
) -> Result<LayerSpec, ModelError> {
    let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
    let attention = BlockSpec::new(ATTN_NORM, eps, BlockKind::Attention(attention));
    let ffn = BlockSpec { reads: Reads::AsBefore, ..BlockSpec::new(ATTN_NORM, eps, ffn) };
    Ok(LayerSpec { blocks: vec![attention, ffn] })
}

/// What stands around the layers.
fn around(hp: &Hparams<'_>, spec: ModelSpec) -> Result<ModelSpec, ModelError> {
    let logit_scale = hp.f32("logit_scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0);
    Ok(ModelSpec {
        head: HeadSpec { logit_scale, ..spec.head.clone() },
        skeleton: Skeleton { norm: NormKind::LayerUnbiased, ..spec.skeleton.clone() },
        ..spec
    })
}

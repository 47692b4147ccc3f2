//! `command-r`, `cohere2` and `cohere2moe`. They have LayerNorm without bias, and attention and FFN that read the same
//! normed rows. They have NORM rotation, and they scale the logits.
//!
//! Large command-r models norm each head of q and k. In cohere2, three layers with rotation and a window are
//! followed by one without either.
//!
//! cohere2moe is cohere2 with experts behind leading dense layers, which rotate whether they have a window or not. The
//! layer without a window comes first. The norms may be RMS norms. Where there is a shared expert, the mean of it and
//! of the others' sum counts.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, BlockSpec, DraftInput, HeadSpec, LayerSpec, ModelError,
    ModelSpec, MoeSpec, NormKind, NormOver, QkNorm, Reads, Rotation, Router, Skeleton,
};

use crate::read::decoder::{ATTN_NORM, Windows, deepseek_experts};
use crate::read::own_drafts::{DraftBlocks, with_blocks};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

/// Layers from which on command-r models norm q and k.
const QK_NORM_LAYERS: usize = 64;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let qk_norm = (hp.n_layer() >= QK_NORM_LAYERS)
        .then_some(QkNorm { over: NormOver::HeadLayer, ..QkNorm::heads(eps) });
    let layer =
        |il: usize| dense(hp, eps, il, AttentionSpec { qk_norm, ..decoder::attention(hp, il)? });
    let spec = decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Norm)?, layer)?;
    around(hp, spec)
}

pub(super) fn describe_2(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let rope = decoder::rope_with_factors(hp, RopeLayout::Norm)?;
    let window = hp.need_u32("attention.sliding_window")?;
    let windows = Windows::read(hp, Some(window), 4, &rope, rope.clone())?;
    windows.one_base(hp)?;
    let layer = |il: usize| {
        let attention = windows.apply(il, decoder::attention(hp, il)?);
        let rotation = windows.rotation(il);
        dense(hp, eps, il, AttentionSpec { rotation, ..attention })
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    around(hp, spec)
}

pub(super) fn describe_2_moe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let (norm, eps) = match hp.f32("attention.layer_norm_rms_epsilon")?.filter(|&eps| eps != 0.0) {
        Some(eps) => (NormKind::Rms, eps),
        None => (NormKind::LayerUnbiased, hp.layer_norm_eps()?),
    };
    let rope = decoder::rope(hp, RopeLayout::Norm)?;
    let window = hp.need_u32("attention.sliding_window")?;
    let layers = hp.windowed_layers_behind(4)?;
    let windows = Windows::of_layers(hp, layers, Some(window), &rope, rope.clone())?;
    windows.one_base(hp)?;
    let n_dense = hp.need_u32("leading_dense_block_count")? as usize;
    hp.need_f32("logit_scale")?;
    let build = |il: usize| {
        let rotates = windows.has(il) || il < n_dense;
        let attention = AttentionSpec {
            rotation: if rotates { Rotation::Model } else { Rotation::None },
            ..windows.apply(il, decoder::attention(hp, il)?)
        };
        if il < n_dense {
            dense(hp, eps, il, attention)
        } else {
            Ok(layer(eps, attention, BlockKind::Moe(moe(hp, il)?)))
        }
    };
    let spec = around(hp, decoder::model(hp, eps, rope, build)?)?;
    let skeleton = Skeleton { norm, ..spec.skeleton.clone() };
    let spec = ModelSpec { skeleton, ..spec };
    // The block rotates and has experts in any case.
    Ok(with_blocks(hp, spec, DraftBlocks::One, DraftInput::Normed, |il| {
        let attention = windows.apply(il, decoder::attention(hp, il)?);
        Ok(layer(eps, attention, BlockKind::Moe(moe(hp, il)?)))
    }))
}

fn moe(hp: &Hparams<'_>, il: usize) -> Result<MoeSpec, ModelError> {
    let whole = hp.u32("expert_shared_feed_forward_length")?.filter(|&n| n > 0);
    let mut experts =
        MoeSpec { selection_bias: false, ..deepseek_experts(hp, il, Router::Sigmoid, None)? };
    if let Some(shared) = &mut experts.shared {
        shared.mlp.n_ff = whole.map_or(shared.mlp.n_ff, |n| n as usize);
        experts.output_scale = 0.5;
    }
    Ok(experts)
}

fn dense(
    hp: &Hparams<'_>,
    eps: f32,
    il: usize,
    attention: AttentionSpec,
) -> Result<LayerSpec, ModelError> {
    Ok(layer(eps, attention, decoder::dense(hp, il, Activation::SwiGlu)?))
}

/// Attention and FFN that read the same normed rows.
fn layer(eps: f32, attention: AttentionSpec, ffn: BlockKind) -> LayerSpec {
    let attention = BlockSpec::new(ATTN_NORM, eps, BlockKind::Attention(attention));
    let ffn = BlockSpec { reads: Reads::AsBefore, ..BlockSpec::new(ATTN_NORM, eps, ffn) };
    LayerSpec { blocks: vec![attention, ffn] }
}

/// Adds the parts around the layers.
fn around(hp: &Hparams<'_>, spec: ModelSpec) -> Result<ModelSpec, ModelError> {
    let logit_scale = hp.f32("logit_scale")?.filter(|&scale| scale != 0.0).unwrap_or(1.0);
    Ok(ModelSpec {
        head: HeadSpec { logit_scale, ..spec.head.clone() },
        skeleton: Skeleton { norm: NormKind::LayerUnbiased, ..spec.skeleton.clone() },
        ..spec
    })
}

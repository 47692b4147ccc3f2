//! `bailingmoe3` (Ling 3): Kimi Linear's layers with rotated latent attention, whose heads are gated, and with decays that
//! have a bound. The gates of its delta attention are made by one matrix each.

use brigade_spec::{
    Activation, BlockKind, BlockSpec, DraftInput, KdaGates, KdaSpec, LayerSpec, MlaGate, MlaSpec,
    MlpSpec, ModelError, ModelSpec, MoeSpec, Rotation, SharedExpertSpec,
};

use super::kimi_linear;
use crate::read::own_drafts::{self, DraftBlocks, with_blocks};
use crate::read::{Hparams, experts, mla, model, rope};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    refuse_variants(hp)?;
    let n_kv_head = hp.need_per_layer("attention.head_count_kv")?;
    let n_dense = hp.need_u32("leading_dense_block_count")? as usize;
    let layer = |mixer, ffn| {
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        LayerSpec { blocks: vec![block("attn_norm.weight", mixer), block("ffn_norm.weight", ffn)] }
    };
    let (mut layers, mut key) = (Vec::with_capacity(hp.n_layer()), None);
    for (il, n_kv_head) in n_kv_head.into_iter().enumerate().take(hp.n_layer()) {
        let mixer = match n_kv_head {
            0 => BlockKind::Kda(kda(hp, il, eps)?),
            _ => {
                let attention = latent_attention(hp, il, eps)?;
                key = Some(attention.n_nope + attention.n_pe);
                BlockKind::Mla(attention)
            }
        };
        let ffn = if il < n_dense { dense(hp, il)? } else { moe(hp, il)? };
        layers.push(layer(mixer, ffn));
    }
    let rope = match key {
        Some(key) => Some(rope::read(hp, RopeLayout::Norm, key, false)?),
        None => None,
    };
    let spec = ModelSpec { rope, ..model::usual(hp, layers, eps)? };
    // The block has latent attention and experts, whatever the layers before it have. Without a rotation there is nothing
    // that it shares.
    if spec.rope.is_none() {
        return Ok(spec);
    }
    let spec = with_blocks(hp, spec, DraftBlocks::One, DraftInput::Normed, |il| {
        Ok(layer(BlockKind::Mla(latent_attention(hp, il, eps)?), moe(hp, il)?))
    });
    Ok(own_drafts::with_heads(spec, |head| own_drafts::need_norm(head)))
}

/// Latent attention with a gate for each head.
fn latent_attention(hp: &Hparams<'_>, il: usize, eps: f32) -> Result<MlaSpec, ModelError> {
    let (gate, rotation) = (Some(MlaGate::EachHead), Rotation::Model);
    Ok(MlaSpec { gate, rotation, ..mla::read(hp, il, eps)? })
}

/// Refuses what such files may have and does not run.
fn refuse_variants(hp: &Hparams<'_>) -> Result<(), ModelError> {
    const SECTIONS: &str = "rope.dimension_sections";
    if hp.i32s(SECTIONS)?.unwrap_or_default().iter().any(|n| *n > 0) {
        return Err(hp.bad(SECTIONS, "models that read images do not run"));
    }
    for key in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
        if hp.f32_per_layer(key)?.unwrap_or_default().iter().any(|bound| *bound != 0.0) {
            return Err(hp.bad(key, "bounds of experts do not run with this architecture"));
        }
    }
    if hp.bool("kda.safe_gate")? == Some(false) {
        return Err(hp.bad("kda.safe_gate", "must be true: decays without a bound do not run"));
    }
    Ok(())
}

fn kda(hp: &Hparams<'_>, il: usize, eps: f32) -> Result<KdaSpec, ModelError> {
    const BOUND: &str = "kda.gate_lower_bound";
    let bound = hp.need_f32(BOUND)?;
    if !(bound.is_finite() && bound < 0.0) {
        return Err(hp.bad(BOUND, &format!("is {bound}, must be below 0")));
    }
    let (decay_bound, gates) = (Some(bound), KdaGates::Full);
    Ok(KdaSpec { decay_bound, gates, ..kimi_linear::kda(hp, il, eps)? })
}

fn dense(hp: &Hparams<'_>, il: usize) -> Result<BlockKind, ModelError> {
    match hp.need_per_layer("feed_forward_length")?[il] {
        0 => Err(hp.bad("feed_forward_length", "must be positive")),
        n_ff => Ok(BlockKind::Mlp(MlpSpec::swiglu(n_ff))),
    }
}

fn moe(hp: &Hparams<'_>, il: usize) -> Result<BlockKind, ModelError> {
    let experts = experts::read(hp, il, |_| 0)?;
    let Some(router) = hp.expert_router()? else {
        return Err(hp.bad("expert_gating_func", "must be present"));
    };
    let n_shared = hp.need_u32("expert_shared_count")?.max(1) as usize;
    let width = match hp.u32("expert_shared_feed_forward_length")?.unwrap_or(0) {
        0 => experts.n_ff * n_shared,
        width => width as usize,
    };
    Ok(BlockKind::Moe(MoeSpec {
        router,
        selection_bias: true,
        norm_weights: hp.bool("expert_weights_norm")?.unwrap_or(false),
        weights_scale: hp.expert_weights_scale()?,
        shared: Some(SharedExpertSpec::new(width, Activation::SwiGlu)),
        ..experts
    }))
}

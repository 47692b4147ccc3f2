//! `rwkv6` (Finch): blocks of time mixing and channel mixing, behind layer norms; and `rwkv6qwen2` (QRWKV-6), which has
//! gated linear attention in the place of Qwen's attention.

use brigade_spec::{
    Activation, BlockKind, BlockSpec, ChannelMixSpec, LayerSpec, ModelError, ModelSpec, NormKind,
    Residual, Skeleton, TimeMix6Spec,
};

use super::rwkv7::{check_shifts, head_dim};
use crate::read::decoder::{ATTN_NORM, FFN_NORM};
use crate::read::{Hparams, decoder};

/// The residual stream is halved behind every so many layers; the weights are made for that.
const RESCALE: &str = "rescale_every_n_layers";

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let norm = NormKind::Layer;
    let skeleton = Skeleton { norm, embedding_norm: Some(norm), ..Skeleton::default() };
    check_shifts(hp, 2)?;
    let rescale = hp.u32(RESCALE)?.unwrap_or(0) as usize;
    let spec = decoder::model(hp, eps, None, |il| {
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        let time_mix = BlockKind::TimeMix6(time_mix(hp, hp.n_embd() / head_dim(hp)?, false)?);
        let channel_mix =
            ChannelMixSpec { n_embd: hp.n_embd(), n_ff: decoder::n_ff(hp, il)?, gated: true };
        let halved = rescale > 0 && (il + 1).is_multiple_of(rescale);
        let channel_mix = BlockSpec {
            residual: Residual::Scaled { output: 1.0, stream: if halved { 0.5 } else { 1.0 } },
            ..block("attn_norm_2.weight", BlockKind::ChannelMix(channel_mix))
        };
        Ok(LayerSpec { blocks: vec![block(ATTN_NORM, time_mix), channel_mix] })
    })?;
    Ok(ModelSpec { skeleton, ..spec })
}

/// RMS norms and Qwen's FFN; several heads may share keys and values.
pub(super) fn describe_qwen2(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    check_shifts(hp, 1)?;
    let n_head = hp.n_embd() / head_dim(hp)?;
    let shared = hp.per_layer("attention.head_count_kv")?;
    decoder::model(hp, eps, None, |il| {
        let n_kv_head = shared.as_ref().map_or(0, |heads| heads[il]);
        let n_kv_head = if n_kv_head == 0 { n_head } else { n_kv_head };
        if !n_head.is_multiple_of(n_kv_head) {
            let problem = format!("{n_kv_head} KV heads cannot serve {n_head} heads");
            return Err(hp.bad("attention.head_count_kv", &problem));
        }
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        let time_mix = BlockKind::TimeMix6(time_mix(hp, n_kv_head, true)?);
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(LayerSpec { blocks: vec![block(ATTN_NORM, time_mix), block(FFN_NORM, ffn)] })
    })
}

fn time_mix(
    hp: &Hparams<'_>,
    n_kv_head: usize,
    linear_attention: bool,
) -> Result<TimeMix6Spec, ModelError> {
    let rank = |key: &str| match hp.need_u32(key)? as usize {
        0 => Err(hp.bad(key, "must be positive")),
        n => Ok(n),
    };
    Ok(TimeMix6Spec {
        n_embd: hp.n_embd(),
        head_dim: head_dim(hp)?,
        n_kv_head,
        mix_rank: rank("time_mix_extra_dim")?,
        decay_rank: rank("time_decay_extra_dim")?,
        linear_attention,
    })
}

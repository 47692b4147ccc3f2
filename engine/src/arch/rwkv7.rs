//! `rwkv7`: blocks of time mixing and channel mixing, behind layer norms. All layers use the values of the
//! first one, so these cross every cut beside the hidden row: two rows for each token.

use super::{
    Beside, BlockKind, BlockSpec, ChannelMixSpec, Hparams, LayerSpec, ModelSpec, NormKind,
    Skeleton, TimeMixSpec,
};
use crate::error::ModelError;

/// Heads are computed in tiles of this many values.
const HEAD_TILE: usize = 16;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.need_f32("attention.layer_norm_epsilon")?;
    let head_dim = hp.need_u32("wkv.head_size")? as usize;
    if head_dim == 0 || !head_dim.is_multiple_of(HEAD_TILE) || !hp.n_embd().is_multiple_of(head_dim)
    {
        let problem = format!(
            "is {head_dim}; it must be a multiple of {HEAD_TILE} that divides the width {}",
            hp.n_embd()
        );
        return Err(hp.bad("wkv.head_size", &problem));
    }
    if hp.u32("token_shift_count")?.unwrap_or(2) != 2 {
        return Err(hp.bad("token_shift_count", "must be 2"));
    }
    let rank = |key: &str| match hp.need_u32(key)? as usize {
        0 => Err(hp.bad(key, "must be positive")),
        n => Ok(n),
    };
    let time_mix = TimeMixSpec {
        n_embd: hp.n_embd(),
        head_dim,
        decay_rank: rank("attention.decay_lora_rank")?,
        rate_rank: rank("attention.iclr_lora_rank")?,
        value_rank: rank("attention.value_residual_mix_lora_rank")?,
        gate_rank: rank("attention.gate_lora_rank")?,
    };
    let n_ff = hp.need_per_layer("feed_forward_length")?[0];
    if n_ff == 0 {
        return Err(hp.bad("feed_forward_length", "must be positive"));
    }
    let channel_mix = ChannelMixSpec { n_embd: hp.n_embd(), n_ff };
    let block = |norm, kind| BlockSpec::new(norm, eps, kind);
    let layer = LayerSpec {
        blocks: vec![
            block("attn_norm.weight", BlockKind::TimeMix(time_mix)),
            block("attn_norm_2.weight", BlockKind::ChannelMix(channel_mix)),
        ],
    };
    Ok(ModelSpec {
        skeleton: Skeleton {
            norm: NormKind::Layer,
            embedding_norm: true,
            beside: Beside::FirstValue,
            ..Skeleton::default()
        },
        ..ModelSpec::usual(hp, vec![layer; hp.n_layer()], eps)?
    })
}

//! `rwkv7`: blocks of time mixing and channel mixing, behind layer norms; and `arwkv7` (ARWKV), which has time mixing
//! in the place of Qwen's attention. All layers use the values of the first one, so these cross every cut beside the
//! hidden row: two rows for each token.

use brigade_spec::{
    Activation, Beside, BlockKind, BlockSpec, ChannelMixSpec, LayerSpec, ModelError, ModelSpec,
    NormKind, Skeleton, TimeMixSpec,
};

use crate::read::decoder::{ATTN_NORM, FFN_NORM};
use crate::read::{Hparams, decoder};

/// Heads are computed in tiles of this many values.
const HEAD_TILE: usize = 16;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let skeleton = Skeleton {
        norm: NormKind::Layer,
        embedding_norm: Some(NormKind::Layer),
        beside: Beside::FirstValue,
        ..Skeleton::default()
    };
    check_shifts(hp, 2)?;
    let spec = decoder::model(hp, eps, None, |il| {
        let channel_mix =
            ChannelMixSpec { n_embd: hp.n_embd(), n_ff: decoder::n_ff(hp, il)?, gated: false };
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        let time_mix = block(ATTN_NORM, BlockKind::TimeMix(time_mix(hp, il)?));
        let channel_mix = block("attn_norm_2.weight", BlockKind::ChannelMix(channel_mix));
        Ok(LayerSpec { blocks: vec![time_mix, channel_mix] })
    })?;
    Ok(ModelSpec { skeleton, ..spec })
}

/// RMS norms and Qwen's FFN; gates and norms of heads where the file has them.
pub(super) fn describe_arwkv7(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let skeleton = Skeleton { beside: Beside::FirstValue, ..Skeleton::default() };
    check_shifts(hp, 1)?;
    let spec = decoder::model(hp, eps, None, |il| {
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        let time_mix = block(ATTN_NORM, BlockKind::TimeMix(time_mix(hp, il)?));
        let ffn = block(FFN_NORM, decoder::dense(hp, il, Activation::SwiGlu)?);
        Ok(LayerSpec { blocks: vec![time_mix, ffn] })
    })?;
    Ok(ModelSpec { skeleton, ..spec })
}

fn time_mix(hp: &Hparams<'_>, il: usize) -> Result<TimeMixSpec, ModelError> {
    let rank = |key: &str| match hp.need_u32(key)? as usize {
        0 => Err(hp.bad(key, "must be positive")),
        n => Ok(n),
    };
    let has = |part: &str| hp.has_tensor(&format!("blk.{il}.time_mix_{part}.weight"));
    // Of rwkv7 a missing tensor is an error of loading.
    let always = hp.arch() == "rwkv7";
    Ok(TimeMixSpec {
        n_embd: hp.n_embd(),
        head_dim: head_dim(hp)?,
        decay_rank: rank("attention.decay_lora_rank")?,
        rate_rank: rank("attention.iclr_lora_rank")?,
        value_rank: rank("attention.value_residual_mix_lora_rank")?,
        gate_rank: if always || has("g1") { Some(rank("attention.gate_lora_rank")?) } else { None },
        norm: always || has("ln"),
    })
}

/// Width of a head, `wkv.head_size`.
pub(super) fn head_dim(hp: &Hparams<'_>) -> Result<usize, ModelError> {
    let head_dim = hp.need_u32("wkv.head_size")? as usize;
    if head_dim > 0 && head_dim.is_multiple_of(HEAD_TILE) && hp.n_embd().is_multiple_of(head_dim) {
        return Ok(head_dim);
    }
    let problem = format!(
        "is {head_dim}; it must be a multiple of {HEAD_TILE} that divides the width {}",
        hp.n_embd()
    );
    Err(hp.bad("wkv.head_size", &problem))
}

/// Checks how many blocks of a layer shift tokens.
pub(super) fn check_shifts(hp: &Hparams<'_>, n: u32) -> Result<(), ModelError> {
    if hp.u32("token_shift_count")?.unwrap_or(2) == n {
        Ok(())
    } else {
        Err(hp.bad("token_shift_count", &format!("must be {n}")))
    }
}

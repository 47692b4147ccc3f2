//! `gptneox`, `phi2`, `falcon` and `stablelm`: LayerNorm with bias, and NEOX rotation of whole heads or a
//! part of them.
//!
//! Attention and FFN both read the layer's input. They share one norm in phi2, small falcons and large
//! stablelms, and have one each in gptneox and large falcons. In small stablelms (and some gptneox models)
//! the FFN follows attention as usual.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, BlockSpec, LayerSpec, ModelError, ModelSpec, NormKind,
    NormOver, QkNorm, Reads, Skeleton,
};

use crate::read::decoder::{ATTN_NORM, FFN_NORM};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

/// The norm before the attention of large falcons, whose FFN has the usual one before attention.
const ATTN_NORM_2: &str = "attn_norm_2.weight";

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let parallel = hp.bool("use_parallel_residual")?.unwrap_or(true);
    let reads = if parallel { Reads::LayerInput } else { Reads::Stream };
    build(hp, |il, _| {
        let ffn = decoder::dense(hp, il, Activation::Gelu)?;
        Ok((decoder::attention(hp, il)?, ATTN_NORM, FFN_NORM, reads, ffn))
    })
}

pub(super) fn describe_phi2(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, |il, _| {
        let ffn = decoder::dense(hp, il, Activation::Gelu)?;
        Ok((decoder::attention(hp, il)?, ATTN_NORM, ATTN_NORM, Reads::AsBefore, ffn))
    })
}

pub(super) fn describe_falcon(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, |il, _| {
        let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
        let (norm, reads) = if hp.has_tensor(&format!("blk.{il}.{ATTN_NORM_2}")) {
            (ATTN_NORM_2, Reads::LayerInput)
        } else {
            (ATTN_NORM, Reads::AsBefore)
        };
        Ok((attention, norm, ATTN_NORM, reads, decoder::dense(hp, il, Activation::Gelu)?))
    })
}

pub(super) fn describe_stablelm(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    build(hp, |il, eps| {
        let has = |name: &str| hp.has_tensor(&format!("blk.{il}.{name}"));
        let qk_norm = has("attn_q_norm.weight")
            .then_some(QkNorm { over: NormOver::HeadLayer, ..QkNorm::heads(eps) });
        let attention =
            AttentionSpec { qk_norm, output_bias: false, ..decoder::attention(hp, il)? };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        let (norm, reads) =
            if has(FFN_NORM) { (FFN_NORM, Reads::Stream) } else { (ATTN_NORM, Reads::AsBefore) };
        Ok((attention, ATTN_NORM, norm, reads, ffn))
    })
}

/// Attention and the norm before it; the FFN, the norm before it and which rows it reads.
type Parts = (AttentionSpec, &'static str, &'static str, Reads, BlockKind);

fn build(
    hp: &Hparams<'_>,
    parts: impl Fn(usize, f32) -> Result<Parts, ModelError>,
) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let layer = |il: usize| {
        let (attention, attn_norm, ffn_norm, reads, ffn) = parts(il, eps)?;
        let attention = BlockSpec::new(attn_norm, eps, BlockKind::Attention(attention));
        let ffn = BlockSpec { reads, ..BlockSpec::new(ffn_norm, eps, ffn) };
        Ok(LayerSpec { blocks: vec![attention, ffn] })
    };
    let spec = decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)?;
    let skeleton = Skeleton { norm: NormKind::Layer, ..spec.skeleton.clone() };
    Ok(ModelSpec { skeleton, ..spec })
}

//! `deepseek` (the first DeepSeek MoE) and `dots1`. Both have plain attention, dense leading layers, and then
//! experts beside shared ones. (arXiv 2401.06066, arXiv 2506.05767.)
//!
//! `deepseek2-ocr` is the text of DeepSeek-OCR: deepseek in NEOX layout, with the router's keys of deepseek2.
//!
//! deepseek has NORM rotation, and experts' weights as the softmax gives them. dots1 has NEOX rotation, norms
//! each head of q and k, and takes its router from the metadata.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, ModelError, ModelSpec, MoeSpec, QkNorm, Router,
};

use super::deepseek2::shared_and_routed;
use crate::read::decoder::{FFN_NORM, deepseek_experts};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let n_dense = decoder::n_dense(hp)?;
    let layer = |il: usize| {
        let ffn = if il < n_dense {
            decoder::dense(hp, il, Activation::SwiGlu)?
        } else {
            BlockKind::Moe(MoeSpec {
                router: Router::Softmax,
                norm_weights: false,
                selection_bias: false,
                ..deepseek_experts(hp, il, Router::Softmax, None)?
            })
        };
        Ok(decoder::layer(eps, decoder::attention(hp, il)?, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, decoder::rope_with_factors(hp, RopeLayout::Norm)?, layer)
}

pub(super) fn describe_ocr(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let n_dense = decoder::n_dense(hp)?;
    let layer = |il: usize| {
        let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
        let ffn = if il < n_dense {
            decoder::dense(hp, il, Activation::SwiGlu)?
        } else {
            let router = hp.expert_router()?.unwrap_or(Router::Softmax);
            BlockKind::Moe(shared_and_routed(hp, il, router)?)
        };
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, decoder::plain_rope(hp, RopeLayout::Neox)?, layer)
}

pub(super) fn describe_dots1(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let n_dense = decoder::n_dense(hp)?;
    let layer = |il: usize| {
        let qk_norm = Some(QkNorm::heads(eps));
        let attention = AttentionSpec { qk_norm, ..decoder::attention(hp, il)? };
        let ffn = if il < n_dense {
            decoder::dense(hp, il, Activation::SwiGlu)?
        } else {
            BlockKind::Moe(deepseek_experts(hp, il, Router::Softmax, None)?)
        };
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

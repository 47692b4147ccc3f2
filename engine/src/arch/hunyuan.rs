//! `hunyuan-dense` and `hunyuan-moe`. Both norm each head of q and k after the rotation. hunyuan-moe has
//! experts in every layer, beside a shared one that has a width of its own. In the dense model,
//! `rope.scaling.alpha` may stretch the rotation's base.

use super::decoder::{self, FFN_NORM};
use super::{
    Activation, AttentionSpec, BlockKind, Hparams, ModelSpec, MoeSpec, QkNorm, SharedExpertSpec,
    experts,
};
use crate::error::ModelError;
use crate::kernels::RopeLayout;

pub(super) fn describe_dense(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let mut rope = decoder::rope_with_factors(hp, RopeLayout::Neox)?;
    if let Some(alpha) = hp.f32("rope.scaling.alpha")?.filter(|&alpha| alpha > 0.0) {
        let (head_dim, _) = hp.head_dims(hp.need_per_layer("attention.head_count")?[0])?;
        let power = head_dim as f64 / (head_dim as f64 - 2.0);
        rope.freq_base *= libm::pow(f64::from(alpha), power) as f32;
    }
    let layer = |il: usize| {
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(decoder::layer(eps, attention(hp, il, eps)?, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, rope, layer)
}

pub(super) fn describe_moe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let n_ff = decoder::n_ff(hp, il)?;
        let n_shared = match hp.u32("expert_shared_feed_forward_length")?.unwrap_or(0) {
            0 => n_ff,
            n => n as usize,
        };
        let experts = MoeSpec {
            // The experts' width is under the dense FFN's key.
            n_ff,
            weights_scale: hp.expert_weights_scale()?,
            shared: Some(SharedExpertSpec::new(n_shared, Activation::SwiGlu)),
            ..experts::read(hp, il, |_| n_ff)?
        };
        Ok(decoder::layer(eps, attention(hp, il, eps)?, FFN_NORM, BlockKind::Moe(experts)))
    };
    decoder::model(hp, eps, decoder::rope_with_factors(hp, RopeLayout::Neox)?, layer)
}

fn attention(hp: &Hparams<'_>, il: usize, eps: f32) -> Result<AttentionSpec, ModelError> {
    let qk_norm = Some(QkNorm { after_rotation: true, ..QkNorm::heads(eps) });
    Ok(AttentionSpec { qk_norm, ..decoder::attention(hp, il)? })
}

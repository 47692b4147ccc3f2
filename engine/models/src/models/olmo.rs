//! `olmo2` and `olmoe`. Both norm q and k over all heads together. (arXiv 2501.00656, arXiv 2409.02060.)
//!
//! olmo2 norms the outputs of attention and FFN, not their inputs. OLMo 3 is an olmo2 with windows, and
//! rotates the layers that have them without YaRN.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, ModelError, ModelSpec, MoeSpec, NormOver, QkNorm,
};

use crate::read::decoder::{FFN_NORM, POST_ATTENTION_NORM, POST_FFN_NORM, Windows};
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

pub(super) fn describe_olmo2(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let windows = Windows::read(hp, hp.window()?, 4, &rope, decoder::unscaled(&rope))?;
    let layer = |il: usize| {
        let attention = windows.apply(il, attention(hp, il, eps)?);
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        let after = [POST_ATTENTION_NORM, POST_FFN_NORM];
        Ok(decoder::layer_with_post_norms(eps, [None; 2], attention, ffn, after))
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    Ok(ModelSpec { local_rope: windows.local_rope, ..spec })
}

pub(super) fn describe_olmoe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let n_ff = decoder::n_ff(hp, il)?;
        let experts = MoeSpec {
            n_ff,
            norm_weights: false,
            weights_scale: hp.expert_weights_scale()?,
            ..experts::read(hp, il, |_| n_ff)?
        };
        Ok(decoder::layer(eps, attention(hp, il, eps)?, FFN_NORM, BlockKind::Moe(experts)))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

fn attention(hp: &Hparams<'_>, il: usize, eps: f32) -> Result<AttentionSpec, ModelError> {
    let qk_norm = Some(QkNorm { over: NormOver::AllHeads, ..QkNorm::heads(eps) });
    Ok(AttentionSpec { qk_norm, output_bias: false, ..decoder::attention(hp, il)? })
}

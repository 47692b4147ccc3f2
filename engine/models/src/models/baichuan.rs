//! `baichuan` and `refact`: llama's block. The small baichuan rotates. The large one and refact have scores that fall
//! with the distance instead. Files do not say which baichuan they are: the number of layers tells.

use brigade_spec::{Activation, Alibi, AttentionSpec, ModelError, ModelSpec, ScoreSpec};

use crate::read::attention::attention_spec;
use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

/// Layers of Baichuan 7B, which rotates.
const ROTATED: usize = 32;
/// Layers of Baichuan 13B, which does not.
const SLOPED: usize = 40;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    match hp.n_layer() {
        ROTATED => {
            let eps = hp.rms_eps()?;
            let layer = |il: usize| {
                let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
                let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
                Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
            };
            decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Norm)?, layer)
        }
        SLOPED => describe_refact(hp),
        n => Err(ModelError::Unsupported(format!(
            "a baichuan of {n} layers: the one of {ROTATED} layers rotates, the one of {SLOPED} has \
             slopes, and files of others do not say what they have"
        ))),
    }
}

pub(super) fn describe_refact(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let scores = ScoreSpec { alibi: Some(Alibi::USUAL), ..ScoreSpec::default() };
        let attention = AttentionSpec { scores, ..attention_spec(hp, il)? };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, None, layer)
}

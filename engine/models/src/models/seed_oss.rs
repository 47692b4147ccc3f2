//! `seed_oss` and `smollm3`: llama's block. seed_oss has NEOX rotation. Its tensor of the norm before the FFN
//! has the name that others give to a norm behind attention. smollm3 has NORM rotation in three of four
//! layers, and none in the fourth.

use brigade_spec::{Activation, AttentionSpec, ModelError, ModelSpec, Rotation};

use crate::read::decoder::{FFN_NORM, POST_ATTENTION_NORM};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

/// Period of layers in smollm3, the last of which is not rotated.
const SMOLLM3_PERIOD: usize = 4;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(decoder::layer(eps, decoder::attention(hp, il)?, POST_ATTENTION_NORM, ffn))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

pub(super) fn describe_smollm3(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let rotation =
            if (il + 1).is_multiple_of(SMOLLM3_PERIOD) { Rotation::None } else { Rotation::Model };
        let attention = AttentionSpec { rotation, ..decoder::attention(hp, il)? };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Norm)?, layer)
}

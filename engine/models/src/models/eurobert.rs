//! `eurobert` and `llama-embed`: decoders' blocks in which each row sees all of its text.

use brigade_spec::{Activation, ModelError, ModelSpec, Rotation};

use super::llama;
use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder, encoder};
use brigade_shapes::RopeLayout;

/// Llama's block with another rotation.
pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let attention = encoder::attention(hp, il, Rotation::Model)?;
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

/// Llama as an encoder, without changes.
pub(super) fn describe_llama(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    encoder::of_decoder(hp, llama::describe(hp)?)
}

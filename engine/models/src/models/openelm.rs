//! `openelm`: llama's block with norms of each head's query and key. Layers differ in their heads and in the width of
//! their FFN. (arXiv 2404.14619.)

use brigade_spec::{Activation, AttentionSpec, ModelError, ModelSpec, QkNorm};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let qk_norm = Some(QkNorm::heads(eps));
        let attention =
            AttentionSpec { qk_norm, output_bias: false, ..decoder::attention(hp, il)? };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

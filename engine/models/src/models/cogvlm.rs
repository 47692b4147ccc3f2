//! `cogvlm`: the text of a model that reads images too. It is llama's block in NEOX layout. Beside the matrices of text,
//! layers have others for the rows of images (`vis_*`), which are left in the file.

use brigade_spec::{Activation, AttentionSpec, ModelError, ModelSpec, Skeleton};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    let rope = decoder::plain_rope(hp, RopeLayout::Neox)?;
    let spec = decoder::model(hp, eps, rope, layer)?;
    Ok(ModelSpec {
        skeleton: Skeleton { left_out: Some(".vis_"), ..spec.skeleton.clone() },
        ..spec
    })
}

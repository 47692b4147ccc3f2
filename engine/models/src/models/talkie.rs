//! `talkie`: llama's block with norms that have no weights, of the embedded rows too. The only factor beside q's and k's
//! norms is one for each query head. The embedded rows are added again behind every layer, times the layer's factor.

use brigade_spec::{
    Activation, AttentionSpec, Beside, HeadSpec, ModelError, ModelSpec, NormKind, NormOver, QkNorm,
    Residual, Skeleton,
};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let qk_norm = Some(QkNorm { eps, over: NormOver::HeadFactor, after_rotation: true });
    let layer = |il: usize| {
        let attention =
            AttentionSpec { qk_norm, output_bias: false, ..decoder::attention(hp, il)? };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        let mut layer = decoder::layer(eps, attention, FFN_NORM, ffn);
        if let Some(ffn) = layer.blocks.last_mut() {
            ffn.residual = Residual::WithEmbedding("layer_output_scale.weight");
        }
        Ok(layer)
    };
    let spec = decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)?;
    let logit_scale = hp.need_f32("logit_scale")?;
    let skeleton = Skeleton {
        norm: NormKind::RmsUnweighted,
        embedding_norm: Some(NormKind::RmsUnweighted),
        beside: Beside::Embedding,
        ..spec.skeleton.clone()
    };
    Ok(ModelSpec { head: HeadSpec { logit_scale, ..spec.head.clone() }, skeleton, ..spec })
}

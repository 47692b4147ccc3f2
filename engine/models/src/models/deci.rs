//! `deci` (DeciLM, Nemotron 51B and 253B): llama's block, thinned out layer by layer. A layer may have fewer heads, a
//! single matrix in the place of attention, no attention, or nothing at all.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, BlockSpec, LayerSpec, ModelError, ModelSpec,
};

use crate::read::decoder::{ATTN_NORM, FFN_NORM};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope_with_factors(hp, RopeLayout::Norm)?;
    decoder::model(hp, eps, rope, |il| {
        let block = |norm, kind| BlockSpec::new(norm, eps, kind);
        let mixer = mixer(hp, il)?.map(|mixer| block(ATTN_NORM, mixer));
        let ffn = match hp.need_per_layer("feed_forward_length")?[il] {
            0 => None,
            _ => Some(block(FFN_NORM, decoder::dense(hp, il, Activation::SwiGlu)?)),
        };
        if mixer.is_some() && ffn.is_none() {
            // llama.cpp computes such attention and drops what comes out; no published model has it.
            let problem = format!("is 0 in layer {il}, which has attention");
            return Err(hp.bad("feed_forward_length", &problem));
        }
        Ok(LayerSpec { blocks: mixer.into_iter().chain(ffn).collect() })
    })
}

/// Attention of layer `il`; a matrix where it has heads but none for keys; nothing where it has no heads.
fn mixer(hp: &Hparams<'_>, il: usize) -> Result<Option<BlockKind>, ModelError> {
    let heads = |key| Ok::<_, ModelError>(hp.need_per_layer(key)?[il]);
    Ok(match (heads("attention.head_count")?, heads("attention.head_count_kv")?) {
        (0, _) => None,
        (_, 0) => Some(BlockKind::Linear),
        _ => {
            let attention = decoder::attention(hp, il)?;
            let scale = hp.f32("attention.scale")?.filter(|&scale| scale != 0.0);
            let scale = scale.unwrap_or(attention.scale);
            Some(BlockKind::Attention(AttentionSpec { scale, ..attention }))
        }
    })
}

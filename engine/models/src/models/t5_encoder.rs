//! `t5encoder`: RMS norms before the blocks, scores without a scale that gain a value by the distance. All layers have
//! these values from the first one's tensor, unless they have their own.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, BlockSpec, Buckets, HeadSpec, LayerSpec, ModelError,
    ModelSpec, Rotation, ScoreSpec, Skeleton,
};

use super::neo_bert::LAST_NORM;
use crate::read::decoder::{ATTN_NORM, FFN_NORM};
use crate::read::{Hparams, decoder, encoder};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    const COUNT: &str = "attention.relative_buckets_count";
    let eps = hp.rms_eps()?;
    let n_buckets = hp.need_u32(COUNT)? as usize;
    if n_buckets < 4 || !n_buckets.is_multiple_of(4) {
        return Err(hp.bad(COUNT, &format!("is {n_buckets}; a multiple of 4 is needed")));
    }
    let layer = |il: usize| {
        let tensor = |il: usize| format!("enc.blk.{il}.attn_rel_b.weight");
        let own = hp.has_tensor(&tensor(il));
        let buckets = Buckets { tensor: tensor(if own { il } else { 0 }), n: n_buckets };
        let attention = AttentionSpec {
            scale: 1.0,
            scores: ScoreSpec { buckets: Some(buckets), ..ScoreSpec::default() },
            ..encoder::attention(hp, il, Rotation::None)?
        };
        let activation = if hp.has_tensor(&format!("enc.blk.{il}.ffn_gate.weight")) {
            Activation::GeGlu
        } else {
            Activation::Relu
        };
        let attention = BlockSpec::new(ATTN_NORM, eps, BlockKind::Attention(attention));
        let ffn = BlockSpec::new(FFN_NORM, eps, decoder::dense(hp, il, activation)?);
        Ok(LayerSpec { blocks: vec![attention, ffn] })
    };
    let spec = decoder::model(hp, eps, None, layer)?;
    let skeleton = Skeleton { encoder_names: true, ..Skeleton::default() };
    let head = HeadSpec { norm: Some(LAST_NORM), ..spec.head.clone() };
    Ok(ModelSpec { skeleton, head, ..spec })
}

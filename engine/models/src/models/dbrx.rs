//! `dbrx`. It has LayerNorm without bias, experts in every layer, and one tensor for queries, keys and
//! values, whose products are clamped.

use brigade_spec::{
    AttentionSpec, BlockKind, KvSpec, ModelError, ModelSpec, MoeSpec, NormKind, Skeleton,
};

use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

/// The norm before the experts.
const EXPERTS_NORM: &str = "attn_output_norm.weight";

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.layer_norm_eps()?;
    let clamp = Some(hp.need_f32("attention.clamp_kqv")?).filter(|&bound| bound > 0.0);
    let layer = |il: usize| {
        let kv = KvSpec { clamp, ..KvSpec::default() };
        let attention = AttentionSpec { kv, output_bias: false, ..decoder::attention(hp, il)? };
        let n_ff = decoder::n_ff(hp, il)?;
        let experts = experts::read(hp, il, |_| n_ff)?;
        let weights_scale = hp.expert_weights_scale()?;
        let experts = BlockKind::Moe(MoeSpec { n_ff, weights_scale, ..experts });
        Ok(decoder::layer(eps, attention, EXPERTS_NORM, experts))
    };
    let spec = decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)?;
    let skeleton = Skeleton { norm: NormKind::LayerUnbiased, ..spec.skeleton.clone() };
    Ok(ModelSpec { skeleton, ..spec })
}

//! `bailingmoe` (Ling) and `bailingmoe2` (Ling 2, Ring). Both have experts beside shared ones.
//!
//! - bailingmoe has NORM rotation of whole heads, and a softmax router in every layer.
//! - bailingmoe2 has one tensor for q, k and v, norms of each head of q and k, and NEOX rotation of a part of
//!   each head. Its leading layers are dense. Its router chooses groups of experts first.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, ModelError, ModelSpec, MoeSpec, QkNorm, Router,
};

use crate::read::decoder::{FFN_NORM, deepseek_experts};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let experts = MoeSpec {
            router: Router::Softmax,
            selection_bias: false,
            ..deepseek_experts(hp, il, Router::Softmax, None)?
        };
        Ok(decoder::layer(eps, decoder::attention(hp, il)?, FFN_NORM, BlockKind::Moe(experts)))
    };
    decoder::model(hp, eps, decoder::rope_with_factors(hp, RopeLayout::Norm)?, layer)
}

pub(super) fn describe_2(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let n_dense = decoder::n_dense(hp)?;
    let shared = hp.u32("expert_shared_feed_forward_length")?.filter(|&n| n > 0);
    let layer = |il: usize| {
        let qk_norm = Some(QkNorm::heads(eps));
        let attention = AttentionSpec { qk_norm, ..decoder::attention(hp, il)? };
        let ffn = if il < n_dense {
            decoder::dense(hp, il, Activation::SwiGlu)?
        } else {
            let shared = shared.map(|n| n as usize);
            BlockKind::Moe(deepseek_experts(hp, il, Router::Sigmoid, shared)?)
        };
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

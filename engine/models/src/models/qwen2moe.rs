//! `qwen2moe`: qwen2's attention, and in every layer experts beside a shared one that has a gate. The
//! experts' weights are not normed.

use brigade_spec::{Activation, BlockKind, ModelError, ModelSpec, MoeSpec, SharedExpertSpec};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let n_ff = hp.per_layer("feed_forward_length")?.map_or(0, |widths| widths[il]);
        let experts = experts::read(hp, il, |n_used| n_ff / n_used)?;
        let n_shared = match hp.u32("expert_shared_feed_forward_length")?.unwrap_or(0) {
            0 => n_ff,
            n => n as usize,
        };
        let shared = SharedExpertSpec::new(n_shared, Activation::SwiGlu);
        let experts = MoeSpec {
            norm_weights: false,
            weights_scale: hp.expert_weights_scale()?,
            shared: Some(SharedExpertSpec { gated: true, ..shared }),
            ..experts
        };
        Ok(decoder::layer(eps, decoder::attention(hp, il)?, FFN_NORM, BlockKind::Moe(experts)))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

//! `minimax-m2`. It norms q and k over all heads together, and has NEOX rotation of a part of each head.
//! Every layer has experts, and a bias takes part in choosing them.

use brigade_spec::{
    AttentionSpec, BlockKind, ModelError, ModelSpec, MoeSpec, NormOver, QkNorm, Router,
};

use crate::read::decoder::FFN_NORM;
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let qk_norm = Some(QkNorm { over: NormOver::AllHeads, ..QkNorm::heads(eps) });
        let attention =
            AttentionSpec { qk_norm, output_bias: false, ..decoder::attention(hp, il)? };
        let experts = MoeSpec {
            // The experts' width is under the dense FFN's key.
            n_ff: decoder::n_ff(hp, il)?,
            router: hp.expert_router()?.unwrap_or(Router::Sigmoid),
            selection_bias: true,
            weights_scale: hp.expert_weights_scale()?,
            ..experts::read(hp, il, |_| 0)?
        };
        Ok(decoder::layer(eps, attention, FFN_NORM, BlockKind::Moe(experts)))
    };
    decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)
}

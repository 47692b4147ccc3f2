//! `gpt-oss`: sinks in every head, windows in every second layer, YaRN, and biases everywhere. The weights of
//! the chosen experts are a softmax over their logits. The experts have a clamped SwiGLU. (arXiv 2508.10925.)

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, ModelError, ModelSpec, MoeSpec, Router, ScoreSpec,
};

use crate::read::decoder::{POST_ATTENTION_NORM, Windows};
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::{RopeLayout, SwiGluClamp};

/// Constants of the activation; files have no keys for them.
pub(super) const CLAMP: SwiGluClamp = SwiGluClamp { alpha: 1.702, limit: 7.0 };

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let window = hp.need_u32("attention.sliding_window")?;
    let windows = Windows::read(hp, Some(window), 2, &rope, rope.clone())?;
    let layer = |il: usize| {
        let attention = windows.apply(il, decoder::attention(hp, il)?);
        let attention =
            AttentionSpec { scores: ScoreSpec { sinks: true, ..attention.scores }, ..attention };
        let experts = MoeSpec {
            activation: Activation::ClampedSwiGlu(CLAMP),
            router: Router::SoftmaxOfChosen,
            weights_scale: hp.expert_weights_scale()?,
            ..experts::read(hp, il, |_| 0)?
        };
        Ok(decoder::layer(eps, attention, POST_ATTENTION_NORM, BlockKind::Moe(experts)))
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    Ok(ModelSpec { local_rope: windows.local_rope, ..spec })
}

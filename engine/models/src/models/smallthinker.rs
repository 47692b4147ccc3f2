//! `smallthinker`: the router reads what comes into the layer, before attention and without a norm; the experts' gates are
//! ReLU. (arXiv 2507.20984.)
//!
//! In a model with windows, every fourth layer, from the first on, does not rotate. In a model without windows all
//! layers rotate. (llama.cpp rotates all layers of a model with windows and exactly four layers too; none is
//! published.)

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, ModelError, ModelSpec, MoeSpec, Rotation,
};

use crate::read::decoder::{FFN_NORM, Windows};
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

/// The one window there is: llama.cpp takes it whatever the file says.
const WINDOW: u32 = 4096;
/// Period of layers in models with windows, the first of which is not rotated.
const UNROTATED_STEP: usize = 4;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let window = hp.window()?;
    if window.is_some_and(|window| window != WINDOW) {
        let problem = format!(
            "must be {WINDOW}, as in all published models, or 0: convert the model again from its source"
        );
        return Err(hp.bad("attention.sliding_window", &problem));
    }
    let Some(router) = hp.expert_router()? else {
        let problem = "must be 1 (softmax) or 2 (sigmoid): convert the model again from its source";
        return Err(hp.bad("expert_gating_func", problem));
    };
    let layers = hp.windowed_layers_behind(UNROTATED_STEP as u32)?;
    let windows = Windows::of_layers(hp, layers, window, &rope, rope.clone())?;
    let layer = |il: usize| {
        let rotates = window.is_none() || !il.is_multiple_of(UNROTATED_STEP);
        let attention = AttentionSpec {
            rotation: if rotates { Rotation::Model } else { Rotation::None },
            output_bias: false,
            ..decoder::attention(hp, il)?
        };
        let experts = MoeSpec {
            activation: Activation::ReGlu,
            router,
            routes_early: true,
            groups: None,
            ..experts::read(hp, il, |_| 0)?
        };
        let attention = windows.apply(il, attention);
        Ok(decoder::layer(eps, attention, FFN_NORM, BlockKind::Moe(experts)))
    };
    let spec = decoder::model(hp, eps, rope.clone(), layer)?;
    Ok(ModelSpec { local_rope: windows.local_rope.clone(), ..spec })
}

#[cfg(test)]
mod tests {
    use super::WINDOW;
    use crate::headers::refusal;

    #[test]
    fn other_windows_and_unnamed_routers_are_refused() {
        for (window, router, key) in [(512, 1, "sliding_window"), (WINDOW, 0, "expert_gating_func")]
        {
            let counts = [
                ("block_count", 4),
                ("context_length", 128),
                ("embedding_length", 32),
                ("attention.head_count", 2),
                ("attention.sliding_window", window),
                ("expert_gating_func", router),
            ];
            let epsilon = ("attention.layer_norm_rms_epsilon", 1e-5);
            let message = refusal("smallthinker", &counts, &[epsilon]);
            assert!(message.contains(key) && message.contains("convert"), "{message}");
        }
    }
}

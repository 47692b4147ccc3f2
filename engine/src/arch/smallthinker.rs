//! `smallthinker`: the router reads what comes into the layer, before attention and without a norm; the experts' gates are
//! ReLU. (arXiv 2507.20984.)
//!
//! A model either has windows, and then every fourth layer, from the first on, does not rotate; or it has none, and all
//! layers rotate.

use super::decoder::{self, FFN_NORM, Windows};
use super::{Activation, AttentionSpec, BlockKind, Hparams, ModelSpec, MoeSpec, Rotation, experts};
use crate::error::ModelError;
use crate::kernels::RopeLayout;

/// The one window there is: llama.cpp takes it whatever the file says.
const WINDOW: u32 = 4096;
/// Of so many layers the first does not rotate, in models with windows.
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
    use crate::arch::describe;
    use crate::gguf::{Gguf, GgufWriter};

    #[test]
    fn other_windows_and_unnamed_routers_are_refused() {
        for (window, router, key) in
            [(512_u32, 1_u32, "sliding_window"), (4096, 0, "expert_gating_func")]
        {
            let mut writer = GgufWriter::new();
            writer.set("general.architecture", "smallthinker").unwrap();
            for (name, value) in [
                ("block_count", 4),
                ("context_length", 128),
                ("embedding_length", 32),
                ("attention.head_count", 2),
                ("attention.sliding_window", window),
                ("expert_gating_func", router),
            ] {
                writer.set(&format!("smallthinker.{name}"), &value).unwrap();
            }
            writer.set("smallthinker.attention.layer_norm_rms_epsilon", &1e-5_f32).unwrap();
            let mut bytes = Vec::new();
            writer.write_header_only(&mut bytes).unwrap();
            let model = Gguf::from_bytes(bytes.into(), "small.gguf").unwrap();
            let message = describe(&model).unwrap_err().to_string();
            assert!(message.contains(key) && message.contains("convert"), "{message}");
        }
    }
}

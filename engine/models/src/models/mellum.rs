//! `mellum` and `maple`: qwen3moe's block, with windows in some layers.
//!
//! - mellum rotates layers with windows without YaRN.
//! - maple rotates only layers with windows, and bounds the gates and the ways up of its experts.

use brigade_spec::{AttentionSpec, BlockKind, ModelError, ModelSpec, MoeSpec, QkNorm};

use crate::read::decoder::{FFN_NORM, Windows};
use crate::read::limits::SwiGluLimits;
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::{GateBound, RopeLayout};

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let window = hp.window()?;
    let local = decoder::unscaled(&rope);
    let windows = Windows::read(hp, window, 4, &rope, local)?;
    if windows.local_rope.as_ref().is_some_and(|local| local.freq_base != rope.freq_base) {
        return Err(hp.bad("rope.freq_base_swa", "mellum rotates by rope.freq_base alone"));
    }
    let layer = |il: usize| {
        let qk_norm = Some(QkNorm::heads(eps));
        let attention = windows.apply(il, decoder::attention(hp, il)?);
        let experts = MoeSpec {
            weights_scale: hp.expert_weights_scale()?,
            ..experts::read(hp, il, |n_used| decoder::n_ff(hp, il).unwrap_or(0) / n_used)?
        };
        let attention = AttentionSpec { qk_norm, ..attention };
        Ok(decoder::layer(eps, attention, FFN_NORM, BlockKind::Moe(experts)))
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    Ok(ModelSpec { local_rope: windows.local_rope, ..spec })
}

pub(super) fn describe_maple(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::local_width(hp, decoder::rope(hp, RopeLayout::Neox)?)?;
    let window = hp.need_u32("attention.sliding_window")?;
    let layers = hp.listed_windows()?;
    let windows = Windows::of_layers(hp, layers, Some(window), &rope, rope.clone())?;
    let limits = SwiGluLimits::read(hp, "swiglu_clamp_exp", GateBound::Before)?;
    let layer = |il: usize| {
        let attention = AttentionSpec {
            rotation: windows.rotation(il),
            qk_norm: Some(QkNorm::heads(eps)),
            output_bias: false,
            ..windows.apply(il, decoder::attention(hp, il)?)
        };
        let experts = MoeSpec { activation: limits.of(il), ..experts::read(hp, il, |_| 0)? };
        Ok(decoder::layer(eps, attention, FFN_NORM, BlockKind::Moe(experts)))
    };
    // No other layer rotates: the windows' rotation is the model's.
    let rope = windows.local_rope.clone().unwrap_or(rope.clone());
    decoder::model(hp, eps, rope, layer)
}

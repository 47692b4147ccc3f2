//! `step35` (Step 3.5) and `spark2_5`: a gate for each head, made of attention's input, and windows in listed layers,
//! which have a rotation of their own.
//!
//! - step35 rotates half of each head in layers without windows. It may norm each head of q and k. Layers with a router
//!   have experts beside a shared one, whose activations may have bounds.
//! - spark2_5 has gated GELUs.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, DraftInput, GateSource, HeadGate, HeadOutputSpec,
    ModelError, ModelSpec, MoeSpec, QkNorm, RopeSpec, Router,
};

use crate::read::decoder::{FFN_NORM, Windows, experts_beside_one, experts_or_dense};
use crate::read::limits::SwiGluLimits;
use crate::read::own_drafts::{DraftBlocks, with_blocks};
use crate::read::{Hparams, decoder};
use brigade_shapes::{GateBound, RopeLayout};

/// Base of step35's windowed layers where the file does not say.
const LOCAL_BASE: f32 = 10_000.0;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let whole = decoder::rope_with_factors(hp, RopeLayout::Neox)?;
    let local = RopeSpec { freq_base: LOCAL_BASE, freq_scale: 1.0, factors: None, ..whole.clone() };
    let local = decoder::local_width(hp, local)?;
    let layers = hp.listed_windows()?;
    let n_rot = half(hp, whole.n_rot)?;
    let widest =
        if layers[..hp.n_layer()].contains(&true) { local.n_rot.max(n_rot) } else { n_rot };
    let rope = RopeSpec { n_rot, n_factors: widest / 2, ..whole };
    let window = hp.need_u32("attention.sliding_window")?;
    let windows = Windows::of_layers(hp, layers, Some(window), &rope, local)?;
    let of_experts = SwiGluLimits::read(hp, "swiglu_clamp_exp", GateBound::After)?;
    let of_others = SwiGluLimits::read(hp, "swiglu_clamp_shexp", GateBound::After)?;
    let layer = |il: usize| {
        let has = |name: &str| hp.has_tensor(&format!("blk.{il}.{name}.weight"));
        let gate = has("attn_gate").then_some(HeadGate::sigmoid(GateSource::EachHead));
        let attention = AttentionSpec {
            qk_norm: has("attn_q_norm").then_some(QkNorm::heads(eps)),
            head_output: HeadOutputSpec { gate, sub_norm: None },
            output_bias: false,
            ..windows.apply(il, decoder::attention(hp, il)?)
        };
        let ffn = experts_or_dense(hp, il, || {
            let mut experts = experts_beside_one(hp, il, Router::Sigmoid)?;
            experts.shared.iter_mut().for_each(|shared| shared.mlp.activation = of_others.of(il));
            Ok(MoeSpec { activation: of_experts.of(il), ..experts })
        })?;
        let ffn = match ffn {
            BlockKind::Mlp(_) => decoder::dense(hp, il, of_others.of(il))?,
            experts => experts,
        };
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    let spec = with_blocks(hp, spec, DraftBlocks::Several, DraftInput::Stream, layer);
    Ok(ModelSpec { local_rope: windows.local_rope, ..spec })
}

/// Half of what layers with windows rotate.
fn half(hp: &Hparams<'_>, n_rot: usize) -> Result<usize, ModelError> {
    if (n_rot / 2).is_multiple_of(2) {
        Ok(n_rot / 2)
    } else {
        Err(hp.bad("rope.dimension_count", "must be a multiple of 4 for step35"))
    }
}

pub(super) fn describe_spark(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let local = decoder::local_width(hp, rope.clone())?;
    let window = hp.need_u32("attention.sliding_window")?;
    let windows = Windows::of_layers(hp, hp.listed_windows()?, Some(window), &rope, local)?;
    let layer = |il: usize| {
        let attention = AttentionSpec {
            head_output: HeadOutputSpec::gated(GateSource::EachHead),
            output_bias: false,
            ..windows.apply(il, decoder::attention(hp, il)?)
        };
        let ffn = decoder::dense(hp, il, Activation::GeGlu)?;
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    Ok(ModelSpec { local_rope: windows.local_rope, ..spec })
}

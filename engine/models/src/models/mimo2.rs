//! `mimo2` (MiMo V2): windows in listed layers, which have a rotation of their own, and sinks in layers whose files have
//! some. Heads' values are narrower than keys, and what attention gives may be scaled. Layers with a router have experts.

use brigade_spec::{
    AttentionSpec, DraftInput, ModelError, ModelSpec, MoeSpec, RopeSpec, Router, ScoreSpec,
};

use crate::read::decoder::{FFN_NORM, Windows, experts_or_dense};
use crate::read::own_drafts::{DraftBlocks, with_blocks};
use crate::read::{Hparams, decoder, experts};
use brigade_shapes::RopeLayout;

/// Base of the windowed layers where the file does not say.
const LOCAL_BASE: f32 = 10_000.0;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let local = RopeSpec { freq_base: LOCAL_BASE, freq_scale: 1.0, ..rope.clone() };
    let window = hp.need_u32("attention.sliding_window")?;
    let windows = Windows::of_layers(hp, hp.listed_windows()?, Some(window), &rope, local)?;
    let value_scale = hp.f32("attention.value_scale")?.filter(|&scale| scale != 0.0);
    let layer = |il: usize| {
        let sinks = hp.has_tensor(&format!("blk.{il}.attn_sinks.weight"));
        let attention = AttentionSpec {
            scores: ScoreSpec { sinks, ..ScoreSpec::default() },
            output_bias: false,
            ..windows.apply(il, decoder::attention(hp, il)?)
        };
        let ffn = experts_or_dense(hp, il, || moe(hp, il))?;
        let mut layer = decoder::layer(eps, attention, FFN_NORM, ffn);
        layer.blocks[0].residual = decoder::scaled_output(value_scale.unwrap_or(1.0));
        Ok(layer)
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    let spec = with_blocks(hp, spec, DraftBlocks::Several, DraftInput::Stream, layer);
    Ok(ModelSpec { local_rope: windows.local_rope, ..spec })
}

fn moe(hp: &Hparams<'_>, il: usize) -> Result<MoeSpec, ModelError> {
    Ok(MoeSpec {
        router: Router::Sigmoid,
        selection_bias: experts::has_selection_bias(hp, il),
        weights_scale: hp.expert_weights_scale()?,
        groups: None,
        ..experts::read(hp, il, |_| 0)?
    })
}

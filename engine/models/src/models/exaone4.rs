//! `exaone4` and `exaone-moe`. exaone4 norms each head of q and k, and the outputs of attention and FFN, but not their inputs. The
//! model of 64 layers has windows in three of four layers, and rotates only those. (arXiv 2507.11407.)
//!
//! exaone-moe always has these windows, and experts behind leading dense layers. It norms the inputs of
//! attention and FFN.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, ModelError, ModelSpec, QkNorm, Rotation, Router,
};

use crate::read::decoder::{
    FFN_NORM, POST_ATTENTION_NORM, POST_FFN_NORM, Windows, experts_beside_one,
};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

/// Layers of the model with windows.
const WINDOWED: usize = 64;
/// Window where the file does not state one.
const WINDOW: u32 = 4096;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope_with_factors(hp, RopeLayout::Neox)?;
    let window = if hp.n_layer() == WINDOWED {
        Some(hp.u32("attention.sliding_window")?.unwrap_or(WINDOW))
    } else {
        None
    };
    let windows = Windows::read(hp, window, 4, &rope, rope.clone())?;
    windows.one_base(hp)?;
    let layer = |il: usize| {
        let attention = windows.apply(il, decoder::attention(hp, il)?);
        let rotates = window.is_none() || windows.has(il);
        let attention = AttentionSpec {
            rotation: if rotates { Rotation::Model } else { Rotation::None },
            qk_norm: Some(QkNorm::heads(eps)),
            output_bias: false,
            ..attention
        };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        let after = [POST_ATTENTION_NORM, POST_FFN_NORM];
        Ok(decoder::layer_with_post_norms(eps, [None; 2], attention, ffn, after))
    };
    decoder::model(hp, eps, rope, layer)
}

pub(super) fn describe_moe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope_with_factors(hp, RopeLayout::Neox)?;
    let window = hp.need_u32("attention.sliding_window")?;
    let windows = Windows::read(hp, Some(window), 4, &rope, rope.clone())?;
    windows.one_base(hp)?;
    let n_dense = decoder::n_dense(hp)?;
    hp.need_u32("expert_gating_func")?;
    let layer = |il: usize| {
        let attention = AttentionSpec {
            rotation: windows.rotation(il),
            qk_norm: Some(QkNorm::heads(eps)),
            output_bias: false,
            ..windows.apply(il, decoder::attention(hp, il)?)
        };
        let ffn = if il < n_dense {
            decoder::dense(hp, il, Activation::SwiGlu)?
        } else {
            BlockKind::Moe(experts_beside_one(hp, il, Router::Softmax)?)
        };
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    decoder::model(hp, eps, rope, layer)
}

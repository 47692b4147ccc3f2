//! `afmoe`, `muse-glimmer` and `laguna`: a gate of the heads' outputs, made of attention's input, norms of each head
//! of q and k, and windows in some layers.
//!
//! - afmoe has norms before and behind each block, and scaled embeddings. It does not rotate every fourth layer. Its
//!   leading layers are dense, the others have experts.
//! - muse-glimmer is dense, norms the embedded rows, rotates only layers with windows, and bounds the logits.
//! - laguna's gates are a softplus, for each head or each of its values. It has experts beside a shared one. Layers with
//!   windows have a rotation of their own, without YaRN.

use brigade_spec::{
    Activation, AttentionSpec, BlockKind, GateActivation, GateSource, HeadGate, HeadOutputSpec,
    HeadSpec, LayerSpec, MaskSpec, ModelError, ModelSpec, MoeSpec, NormKind, QkNorm, RopeSpec,
    Rotation, Router, Skeleton,
};

use crate::read::decoder::{
    ATTN_NORM, FFN_NORM, POST_ATTENTION_NORM, POST_FFN_NORM, Windows, deepseek_experts,
    experts_beside_one,
};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

/// Period of layers in afmoe, the last of which is not rotated.
const UNROTATED: usize = 4;
/// Epsilon of muse-glimmer's norms behind blocks.
const POST_EPS: f32 = 1e-8;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let windows = Windows::read(hp, hp.window()?, 4, &rope, rope.clone())?;
    let n_dense = decoder::n_dense(hp)?;
    hp.need_u32("expert_shared_count")?;
    let layer = |il: usize| {
        let rotation =
            if (il + 1).is_multiple_of(UNROTATED) { Rotation::None } else { Rotation::Model };
        let attention = AttentionSpec { rotation, ..gated(hp, il, eps)? };
        let ffn = if il < n_dense {
            decoder::dense(hp, il, Activation::SwiGlu)?
        } else {
            BlockKind::Moe(MoeSpec {
                selection_bias: true,
                ..deepseek_experts(hp, il, Router::Sigmoid, None)?
            })
        };
        Ok(layer_with_norms(eps, windows.apply(il, attention), ffn))
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    let embedding_scale = (spec.n_embd as f32).sqrt();
    Ok(ModelSpec { embedding_scale, local_rope: windows.local_rope, ..spec })
}

pub(super) fn describe_muse(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Norm)?;
    let local = RopeSpec { freq_scale: 1.0, ..rope.clone() };
    let window = hp.need_u32("attention.sliding_window")?;
    let windows = Windows::read(hp, Some(window), 4, &local, local.clone())?;
    let layer = |il: usize| {
        let rotation = windows.rotation(il);
        let attention = AttentionSpec { rotation, ..gated(hp, il, eps)? };
        let mask = MaskSpec { window: windows.window_of(il), ..MaskSpec::default() };
        let attention = AttentionSpec { mask, ..attention };
        let ffn = decoder::dense(hp, il, Activation::SwiGlu)?;
        let mut layer = layer_with_norms(eps, attention, ffn);
        let post_norms = layer.blocks.iter_mut().flat_map(|block| &mut block.post_norm);
        post_norms.for_each(|norm| norm.eps = POST_EPS);
        Ok(layer)
    };
    // No other layer rotates: the windows' rotation is the model's.
    let rope = windows.local_rope.clone().unwrap_or(local.clone());
    let spec = decoder::model(hp, eps, rope, layer)?;
    let softcap = hp.f32("final_logit_softcapping")?.filter(|&cap| cap != 0.0);
    let logit_scale = hp.need_f32("logit_scale")?;
    let embedding_norm = Some(NormKind::RmsUnweighted);
    Ok(ModelSpec {
        head: HeadSpec { logit_scale, softcap, ..spec.head.clone() },
        skeleton: Skeleton { embedding_norm, ..spec.skeleton.clone() },
        ..spec
    })
}

pub(super) fn describe_laguna(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let local = decoder::local_width(hp, decoder::unscaled(&rope))?;
    let layers = hp.windowed_layers_behind(4)?;
    let windows = Windows::of_layers(hp, layers, hp.window()?, &rope, local)?;
    let n_dense = hp.need_u32("leading_dense_block_count")? as usize;
    let layer = |il: usize| {
        let attention = gated(hp, il, eps)?;
        let source = match hp.rows_of(&format!("blk.{il}.attn_gate.weight")) {
            Some(rows) if rows == attention.n_head => GateSource::EachHead,
            _ => GateSource::EachValue,
        };
        let gate = Some(HeadGate { source, activation: GateActivation::Softplus });
        let head_output = HeadOutputSpec { gate, ..attention.head_output };
        let attention = windows.apply(il, AttentionSpec { head_output, ..attention });
        let ffn = if il < n_dense {
            decoder::dense(hp, il, Activation::SwiGlu)?
        } else {
            BlockKind::Moe(MoeSpec {
                selection_bias: true,
                ..experts_beside_one(hp, il, Router::Sigmoid)?
            })
        };
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    Ok(ModelSpec { local_rope: windows.local_rope, ..spec })
}

/// Heads with norms, and a sigmoid for each value that they give.
fn gated(hp: &Hparams<'_>, il: usize, eps: f32) -> Result<AttentionSpec, ModelError> {
    Ok(AttentionSpec {
        qk_norm: Some(QkNorm::heads(eps)),
        head_output: HeadOutputSpec::gated(GateSource::EachValue),
        output_bias: false,
        ..decoder::attention(hp, il)?
    })
}

/// Norms before and behind attention and FFN.
fn layer_with_norms(eps: f32, attention: AttentionSpec, ffn: BlockKind) -> LayerSpec {
    let (before, after) = ([Some(ATTN_NORM), Some(FFN_NORM)], [POST_ATTENTION_NORM, POST_FFN_NORM]);
    decoder::layer_with_post_norms(eps, before, attention, ffn, after)
}

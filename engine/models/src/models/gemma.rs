//! `gemma`, `gemma2` and `gemma3`: scaled embeddings, and FFNs with tanh GELU. (arXiv 2408.00118, arXiv 2503.19786.)
//!
//! Since gemma2 there are norms before and after attention and FFN, and some layers have windows. gemma2 also
//! bounds the scores and the logits. gemma3 also norms each head of q and k, and rotates layers with windows
//! by a base of their own.

use brigade_spec::{
    Activation, AttentionSpec, HeadSpec, LayerSpec, ModelError, ModelSpec, QkNorm, RopeSpec,
    ScoreSpec,
};

use crate::read::decoder::{ATTN_NORM, FFN_NORM, POST_ATTENTION_NORM, POST_FFN_NORM, Windows};
use crate::read::{Hparams, decoder};
use brigade_shapes::RopeLayout;

/// gemma2's window where the file does not say.
const GEMMA2_WINDOW: u32 = 4096;
/// Layers of the 27B models, whose scores are scaled by the residual stream's share of a head.
const GEMMA2_27B: usize = 46;
const GEMMA3_27B: usize = 62;
/// Base of windowed layers since gemma3, whose angles are not scaled.
pub(super) const LOCAL_BASE: f32 = 10_000.0;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let layer = |il: usize| {
        let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
        let ffn = decoder::dense(hp, il, Activation::GeGlu)?;
        Ok(decoder::layer(eps, attention, FFN_NORM, ffn))
    };
    around(decoder::model(hp, eps, decoder::rope(hp, RopeLayout::Neox)?, layer)?, None)
}

pub(super) fn describe_gemma2(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let window = hp.u32("attention.sliding_window")?.unwrap_or(GEMMA2_WINDOW);
    let windows = Windows::read(hp, Some(window), 2, &rope, rope.clone())?;
    let softcap = Some(hp.f32("attn_logit_softcapping")?.unwrap_or(50.0));
    let scores = ScoreSpec { softcap, ..ScoreSpec::default() };
    let layer = |il: usize| {
        let attention = windows.apply(il, attention(hp, il, GEMMA2_27B)?);
        layer(hp, eps, il, AttentionSpec { scores: scores.clone(), ..attention })
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    let softcap = Some(hp.f32("final_logit_softcapping")?.unwrap_or(30.0));
    around(ModelSpec { local_rope: windows.local_rope, ..spec }, softcap)
}

pub(super) fn describe_gemma3(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let local = RopeSpec { freq_base: LOCAL_BASE, freq_scale: 1.0, ..rope.clone() };
    let windows = Windows::read(hp, hp.window()?, 6, &rope, local)?;
    let layer = |il: usize| {
        let attention = windows.apply(il, attention(hp, il, GEMMA3_27B)?);
        layer(hp, eps, il, AttentionSpec { qk_norm: Some(QkNorm::heads(eps)), ..attention })
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    let softcap = hp.f32("final_logit_softcapping")?.filter(|&cap| cap != 0.0);
    around(ModelSpec { local_rope: windows.local_rope, ..spec }, softcap)
}

fn attention(hp: &Hparams<'_>, il: usize, n_layer_27b: usize) -> Result<AttentionSpec, ModelError> {
    let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
    let scale = if hp.n_layer() == n_layer_27b {
        1.0 / ((hp.n_embd() / attention.n_head) as f32).sqrt()
    } else {
        attention.scale
    };
    Ok(AttentionSpec { scale, ..attention })
}

/// Attention and a dense FFN, each between two norms.
pub(super) fn layer(
    hp: &Hparams<'_>,
    eps: f32,
    il: usize,
    attention: AttentionSpec,
) -> Result<LayerSpec, ModelError> {
    let ffn = decoder::dense(hp, il, Activation::GeGlu)?;
    let before = [Some(ATTN_NORM), Some(FFN_NORM)];
    let after = [POST_ATTENTION_NORM, POST_FFN_NORM];
    Ok(decoder::layer_with_post_norms(eps, before, attention, ffn, after))
}

/// Adds the parts around the layers.
pub(super) fn around(spec: ModelSpec, softcap: Option<f32>) -> Result<ModelSpec, ModelError> {
    let embedding_scale = (spec.n_embd as f32).sqrt();
    Ok(ModelSpec { embedding_scale, head: HeadSpec { softcap, ..spec.head.clone() }, ..spec })
}

//! `gemma`, `gemma2`, `gemma3` and `gemma4`: scaled embeddings, and FFNs with tanh GELU. (arXiv 2408.00118, arXiv
//! 2503.19786.)
//!
//! Since gemma2 there are norms before and after attention and FFN, and some layers have windows. gemma2 also
//! bounds the scores and the logits. gemma3 also norms each head of q and k, and rotates layers with windows
//! by a base of their own.
//!
//! gemma4's heads are wider in layers without windows, where keys' projections may make the values too. Values are normed,
//! scores are not scaled, and every layer has a factor on the stream. Experts stand beside a dense FFN, each branch with
//! norms of its own. The small models (E2B, E4B), whose layers have embeddings of their own, do not run.

use super::decoder::{self, ATTN_NORM, FFN_NORM, POST_ATTENTION_NORM, POST_FFN_NORM, Windows};
use super::{
    Activation, AttentionSpec, BlockKind, HeadSpec, Hparams, LayerSpec, MlpSpec, ModelSpec,
    MoeSpec, QkNorm, RopeFactors, RopeSpec, SharedExpertSpec, experts,
};
use crate::error::ModelError;
use crate::kernels::RopeLayout;

/// gemma2's window where the file does not say.
const GEMMA2_WINDOW: u32 = 4096;
/// Layers of the 27B models, whose scores are scaled by the residual stream's share of a head.
const GEMMA2_27B: usize = 46;
const GEMMA3_27B: usize = 62;
/// Base of gemma3's windowed layers, whose angles are not scaled.
const GEMMA3_LOCAL_BASE: f32 = 10_000.0;

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
    let layer = |il: usize| {
        let attention = windows.apply(il, attention(hp, il, GEMMA2_27B)?);
        layer(hp, eps, il, AttentionSpec { softcap, ..attention })
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    let softcap = Some(hp.f32("final_logit_softcapping")?.unwrap_or(30.0));
    around(ModelSpec { local_rope: windows.local_rope, ..spec }, softcap)
}

pub(super) fn describe_gemma3(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let local = RopeSpec { freq_base: GEMMA3_LOCAL_BASE, freq_scale: 1.0, ..rope.clone() };
    let windows = Windows::read(hp, hp.window()?, 6, &rope, local)?;
    let layer = |il: usize| {
        let attention = windows.apply(il, attention(hp, il, GEMMA3_27B)?);
        layer(hp, eps, il, AttentionSpec { qk_norm: Some(QkNorm::heads(eps)), ..attention })
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    let softcap = hp.f32("final_logit_softcapping")?.filter(|&cap| cap != 0.0);
    around(ModelSpec { local_rope: windows.local_rope, ..spec }, softcap)
}

pub(super) fn describe_gemma4(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    for key in ["embedding_length_per_layer_input", "attention.shared_kv_layers"] {
        if hp.u32(key)?.unwrap_or(0) > 0 {
            let why = format!(
                "gemma4 with {key}, as E2B and E4B have it: take one of the larger models (26B, 31B)"
            );
            return Err(ModelError::Unsupported(why));
        }
    }
    let eps = hp.rms_eps()?;
    let whole = decoder::rope(hp, RopeLayout::Neox)?;
    let (head_dim, _) = hp.head_dims(hp.need_per_layer("attention.head_count")?[0])?;
    let factors = Some(RopeFactors::Always);
    let rope = RopeSpec { factors, n_factors: head_dim / 2, ..whole.clone() };
    let local = RopeSpec { freq_base: GEMMA3_LOCAL_BASE, freq_scale: 1.0, ..whole };
    let local = decoder::local_width(hp, local)?;
    let narrow = hp.need_u32("attention.key_length_swa")? as usize;
    if narrow < local.n_rot {
        return Err(hp.bad("rope.dimension_count_swa", "is more than a head of windows has"));
    }
    // Where keys are values, they are as wide.
    let widths = [("attention.value_length_swa", narrow), ("attention.value_length", head_dim)];
    for (key, keys) in widths {
        if hp.need_u32(key)? as usize != keys {
            return Err(hp.bad(key, &format!("must be {keys}, as keys are in gemma4")));
        }
    }
    let window = hp.need_u32("attention.sliding_window")?;
    let windows = Windows::of_layers(hp, hp.listed_windows()?, Some(window), &rope, local)?;
    let layer = |il: usize| {
        let attention = windows.apply(il, decoder::attention(hp, il)?);
        let width = if windows.has(il) { narrow } else { head_dim };
        let attention = AttentionSpec {
            head_dim_k: width,
            head_dim_v: width,
            scale: 1.0,
            qk_norm: Some(QkNorm::heads(eps)),
            value_norm: Some(eps),
            values_of_keys: !["attn_v", "attn_qkv"]
                .iter()
                .any(|name| hp.has_tensor(&format!("blk.{il}.{name}.weight"))),
            output_bias: false,
            ..attention
        };
        gemma4_layer(hp, eps, il, attention)
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    let softcap = hp.f32("final_logit_softcapping")?.filter(|&cap| cap != 0.0);
    around(ModelSpec { local_rope: windows.local_rope, ..spec }, softcap)
}

fn gemma4_layer(
    hp: &Hparams<'_>,
    eps: f32,
    il: usize,
    attention: AttentionSpec,
) -> Result<LayerSpec, ModelError> {
    let has = |name: &str| hp.has_tensor(&format!("blk.{il}.{name}.weight"));
    let n_ff = decoder::n_ff(hp, il)?;
    let mut layer = layer(hp, eps, il, attention)?;
    let Some(ffn) = layer.blocks.last_mut() else { return Ok(layer) };
    if has("ffn_gate_inp") {
        let mlp = MlpSpec::new(n_ff, Activation::GeGlu);
        ffn.norm = None;
        ffn.kind = BlockKind::Moe(MoeSpec {
            activation: Activation::GeGlu,
            groups: None,
            branch_eps: Some(eps),
            shared: Some(SharedExpertSpec { mlp, gated: false }),
            ..experts::read(hp, il, |_| 0)?
        });
    }
    ffn.stream_factor = has("layer_output_scale").then_some("layer_output_scale.weight");
    Ok(layer)
}

fn attention(hp: &Hparams<'_>, il: usize, n_layer_27b: usize) -> Result<AttentionSpec, ModelError> {
    let attention = AttentionSpec { output_bias: false, ..decoder::attention(hp, il)? };
    let scale = match hp.n_layer() == n_layer_27b {
        true => 1.0 / ((hp.n_embd() / attention.n_head) as f32).sqrt(),
        false => attention.scale,
    };
    Ok(AttentionSpec { scale, ..attention })
}

fn layer(
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

/// What stands around the layers.
fn around(spec: ModelSpec, softcap: Option<f32>) -> Result<ModelSpec, ModelError> {
    let embedding_scale = (spec.n_embd as f32).sqrt();
    Ok(ModelSpec { embedding_scale, head: HeadSpec { softcap, ..spec.head.clone() }, ..spec })
}

#[cfg(test)]
mod tests {
    use crate::arch::headers::refusal;

    #[test]
    fn the_small_gemma4_is_refused_with_what_runs_instead() {
        for key in ["embedding_length_per_layer_input", "attention.shared_kv_layers"] {
            let counts = [("block_count", 35), ("embedding_length", 1536), (key, 20)];
            let message = refusal("gemma4", &counts, &[]);
            assert!(message.contains(key) && message.contains("31B"), "{message}");
        }
    }
}

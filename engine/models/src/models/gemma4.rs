//! `gemma4`: gemma3's layers, with more that differs from layer to layer.
//!
//! Heads are wider in layers without windows, where keys' projections may make the values too. Values are normed,
//! scores are not scaled, and every layer has a factor on the stream. Experts stand beside a dense FFN, each branch with
//! norms of its own.
//!
//! In the small models (E2B, E4B) a token has a row for every layer, which is added behind the FFN ([`LayerRowSpec`]).
//! Their last layers have no keys and values. They attend to those of the last layer before them that is of their kind:
//! with a window, or without.

use brigade_spec::{
    Activation, AttentionSpec, Beside, BlockKind, BlockSpec, KvFrom, KvSpec, LayerRowSpec,
    LayerSpec, MlpSpec, ModelError, ModelSpec, MoeSpec, QkNorm, Residual, RopeFactors, RopeSpec,
    SharedExpertSpec, Skeleton,
};

use super::gemma::{LOCAL_BASE, around, layer};
use crate::read::decoder::Windows;
use crate::read::{Hparams, decoder, experts, lending};
use brigade_shapes::RopeLayout;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    let n_own = lending::n_own(hp, hp.n_layer())?;
    let whole = decoder::rope(hp, RopeLayout::Neox)?;
    let (head_dim, _) = hp.head_dims(hp.need_per_layer("attention.head_count")?[0])?;
    let factors = Some(RopeFactors::Always);
    let rope = RopeSpec { factors, n_factors: head_dim / 2, ..whole.clone() };
    let local = RopeSpec { freq_base: LOCAL_BASE, freq_scale: 1.0, ..whole };
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
    let row = hp.u32("embedding_length_per_layer_input")?.unwrap_or(0) as usize;
    let attention = |il: usize| -> Result<AttentionSpec, ModelError> {
        let from = lending::kv_from(hp, &windows, n_own, il)?;
        let attention = windows.apply(il, decoder::attention(hp, il)?);
        let width = if windows.has(il) { narrow } else { head_dim };
        let has = |name: &str| hp.has_tensor(&format!("blk.{il}.{name}.weight"));
        let borrows = matches!(from, KvFrom::Borrowed(_));
        let values_of_keys = !borrows && !has("attn_v") && !has("attn_qkv");
        Ok(AttentionSpec {
            head_dim_k: width,
            head_dim_v: width,
            scale: 1.0,
            qk_norm: Some(QkNorm::heads(eps)),
            kv: KvSpec { from, values_of_keys, value_norm: Some(eps), clamp: None },
            output_bias: false,
            ..attention
        })
    };
    let spec = decoder::model(hp, eps, rope, |il| of_layer(hp, eps, il, attention(il)?, row))?;
    lending::check(hp, &spec)?;
    let softcap = hp.f32("final_logit_softcapping")?.filter(|&cap| cap != 0.0);
    let beside = match lending::n_lent(hp, n_own) {
        0 if row == 0 => Beside::Nothing,
        lent => Beside::ForLayers { row, lent },
    };
    let skeleton = Skeleton { beside, ..Skeleton::default() };
    around(ModelSpec { local_rope: windows.local_rope, skeleton, ..spec }, softcap)
}

fn of_layer(
    hp: &Hparams<'_>,
    eps: f32,
    il: usize,
    attention: AttentionSpec,
    row: usize,
) -> Result<LayerSpec, ModelError> {
    let has = |name: &str| hp.has_tensor(&format!("blk.{il}.{name}.weight"));
    let n_ff = decoder::n_ff(hp, il)?;
    let mut layer = layer(hp, eps, il, attention)?;
    if let Some(ffn) = layer.blocks.last_mut().filter(|_| has("ffn_gate_inp")) {
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
    if row > 0 {
        let row = LayerRowSpec { width: row, n_left: hp.n_layer() - il, eps };
        layer.blocks.push(BlockSpec::bare(BlockKind::LayerRow(row)));
    }
    if let Some(last) = layer.blocks.last_mut().filter(|_| has("layer_output_scale")) {
        last.residual = Residual::Factor("layer_output_scale.weight");
    }
    Ok(layer)
}

//! `gemma3n`: gemma3's attention, whose values are normed and whose last layers borrow their keys and values, in four streams
//! that are updated by turns ([`AltUpSpec`]). A low-rank way leads past attention, the first layers' FFNs use few of their
//! gates, and a token has a row for every layer.

use brigade_spec::{
    Activation, AltUpSpec, AltUpStep, AttentionSpec, Beside, BlockKind, BlockSpec, HeadReads,
    HeadSpec, KvSpec, LaurelSpec, LayerRowSpec, LayerSpec, MlpSpec, ModelError, ModelSpec,
    NormSpec, QkNorm, Reads, Residual, RopeSpec, Skeleton, Streams,
};

use super::gemma::{LOCAL_BASE, around};
use crate::read::decoder::{ATTN_NORM, FFN_NORM, POST_ATTENTION_NORM, POST_FFN_NORM, Windows};
use crate::read::{Hparams, decoder, lending};
use brigade_shapes::RopeLayout;

/// Layers with keys and values of their own, where the file does not say.
const N_OWN: usize = 20;
/// Number of streams. The files of llama.cpp say no other number, and it reads none.
const STREAMS: usize = 4;
/// Width in the middle of the way past attention.
const LAUREL_RANK: usize = 64;
/// Width of a layer's own row.
const ROW: usize = 256;
/// The first layers use a twentieth of their gates: those that are so many standard deviations above the mean.
const SPARSE_LAYERS: usize = 10;
/// Standard deviations for [`SPARSE_LAYERS`], below which gates are 0.
const GATE_ABOVE: f32 = 1.644_853_6;
/// Bound of the logits where the file does not say.
const SOFTCAP: f32 = 30.0;

pub(super) fn describe(hp: &Hparams<'_>) -> Result<ModelSpec, ModelError> {
    let eps = hp.rms_eps()?;
    for (key, value) in [("altup.num_inputs", STREAMS), ("altup.active_idx", 0)] {
        if hp.u32(key)?.is_some_and(|n| n as usize != value) {
            return Err(hp.bad(key, &format!("must be {value}")));
        }
    }
    if hp.u32("embedding_length_per_layer_input")?.is_some_and(|n| n as usize != ROW) {
        return Err(hp.bad("embedding_length_per_layer_input", &format!("must be {ROW}")));
    }
    let rope = decoder::rope(hp, RopeLayout::Neox)?;
    let local = RopeSpec { freq_base: LOCAL_BASE, freq_scale: 1.0, ..rope.clone() };
    let window = hp.need_u32("attention.sliding_window")?;
    let windows = Windows::read(hp, Some(window), 5, &rope, local)?;
    let n_own = lending::n_own(hp, N_OWN)?;
    let lent = lending::n_lent(hp, n_own);
    let beside = Beside::ForLayers { row: ROW, lent };
    let altup = AltUpSpec { n: STREAMS, second: Beside::n_for_layers(lent), eps };
    let layer = |il: usize| {
        let from = lending::kv_from(hp, &windows, n_own, il)?;
        let attention = AttentionSpec {
            scale: 1.0,
            qk_norm: Some(QkNorm::heads(eps)),
            kv: KvSpec { from, value_norm: Some(eps), ..KvSpec::default() },
            output_bias: false,
            ..windows.apply(il, decoder::attention(hp, il)?)
        };
        let gate_above = (il < SPARSE_LAYERS).then_some(GATE_ABOVE);
        let ffn = MlpSpec { gate_above, ..MlpSpec::new(decoder::n_ff(hp, il)?, Activation::GeGlu) };
        let n_left = hp.n_layer() - il;
        Ok(blocks(altup, attention, ffn, n_left))
    };
    let spec = decoder::model(hp, eps, rope, layer)?;
    lending::check(hp, &spec)?;
    let skeleton = Skeleton { beside, streams: Streams::AltUp(altup), ..Skeleton::default() };
    let head = HeadSpec { reads: HeadReads::AltUp(altup), ..spec.head.clone() };
    let softcap = Some(hp.f32("final_logit_softcapping")?.unwrap_or(SOFTCAP));
    around(ModelSpec { local_rope: windows.local_rope, skeleton, head, ..spec }, softcap)
}

/// A layer with `n_left` layers from it to the model's end.
fn blocks(altup: AltUpSpec, attention: AttentionSpec, ffn: MlpSpec, n_left: usize) -> LayerSpec {
    let eps = altup.eps;
    let post_norm = |weight| Some(NormSpec { weight, eps });
    let attention = BlockSpec {
        post_norm: post_norm(POST_ATTENTION_NORM),
        residual: Residual::AltUp(altup, AltUpStep::Predict),
        ..BlockSpec::new(ATTN_NORM, eps, BlockKind::Attention(attention))
    };
    let laurel = BlockKind::Laurel(LaurelSpec { rank: LAUREL_RANK, eps });
    let laurel = BlockSpec {
        reads: Reads::AsBefore,
        residual: Residual::Scaled { output: 1.0, stream: std::f32::consts::FRAC_1_SQRT_2 },
        ..BlockSpec::new(ATTN_NORM, eps, laurel)
    };
    let ffn = BlockSpec {
        post_norm: post_norm(POST_FFN_NORM),
        residual: Residual::AltUp(altup, AltUpStep::Correct),
        ..BlockSpec::new(FFN_NORM, eps, BlockKind::Mlp(ffn))
    };
    let row = LayerRowSpec { width: ROW, n_left, eps };
    let row = BlockSpec {
        residual: Residual::AltUp(altup, AltUpStep::Others),
        ..BlockSpec::bare(BlockKind::LayerRow(row))
    };
    LayerSpec { blocks: vec![attention, laurel, ffn, row] }
}

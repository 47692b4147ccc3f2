//! Reads what metadata say about hyper-connections, under the keys that their architectures share.

use brigade_spec::{BlockKind, BlockSpec, GatedSpec, HyperSpec, LayerSpec, ModelError, Residual};

use super::decoder::{ATTN_NORM, FFN_NORM};
use super::hparams::Hparams;

/// Stem of the tensors of a layer's mixer.
const MIXER_STEM: &str = "hc_attn";
/// Stem of those of its FFN.
const FFN_STEM: &str = "hc_ffn";
/// Stem of the head's, where it has some.
const HEAD_STEM: &str = "output_hc";
/// Greatest weight of a block's output where streams mix.
const MAGNITUDE: f32 = 2.0;
/// Most rounds that are believed; models have twenty.
const MOST_ROUNDS: u32 = 1000;
/// Most streams that are believed; models have four.
const MOST_STREAMS: usize = 64;

/// Number of a token's streams.
fn count(hp: &Hparams<'_>) -> Result<usize, ModelError> {
    const COUNT: &str = "hyper_connection.count";
    match hp.need_u32(COUNT)? as usize {
        n if (2..=MOST_STREAMS).contains(&n) => Ok(n),
        n => Err(hp.bad(COUNT, &format!("is {n}, must be between 2 and {MOST_STREAMS}"))),
    }
}

/// A mixer and an FFN behind the usual norms, which read and write `streams`.
pub(crate) fn layer(streams: HyperSpec, eps: f32, mixer: BlockKind, ffn: BlockKind) -> LayerSpec {
    let block = |norm, stem, kind| BlockSpec {
        residual: Residual::Hyper(HyperSpec { stem, ..streams }),
        ..BlockSpec::new(norm, eps, kind)
    };
    let blocks = vec![block(ATTN_NORM, MIXER_STEM, mixer), block(FFN_NORM, FFN_STEM, ffn)];
    LayerSpec { blocks }
}

/// A mixer and an FFN that read and write `streams` through gates.
pub(crate) fn gated_blocks(streams: GatedSpec, mixer: BlockKind, ffn: BlockKind) -> [BlockSpec; 2] {
    let block = |stem, kind| BlockSpec {
        residual: Residual::Gated(GatedSpec { stem, ..streams }),
        ..BlockSpec::bare(kind)
    };
    [block(MIXER_STEM, mixer), block(FFN_STEM, ffn)]
}

/// Streams with a gate for each value, as the head reads them.
pub(crate) fn read_gated(hp: &Hparams<'_>, eps: f32) -> Result<GatedSpec, ModelError> {
    const RANK: &str = "hyper_connection.low_rank";
    match hp.need_u32(RANK)? as usize {
        0 => Err(hp.bad(RANK, "must be positive")),
        rank => Ok(GatedSpec { n: count(hp)?, rank, eps, stem: HEAD_STEM }),
    }
}

/// Streams that do not mix, as the head weighs them, with the norms' `eps`.
pub(crate) fn read(hp: &Hparams<'_>, norm_eps: f32) -> Result<HyperSpec, ModelError> {
    Ok(HyperSpec {
        n: count(hp)?,
        norm_eps,
        eps: hp.need_f32("hyper_connection.epsilon")?,
        magnitude: 1.0,
        post_eps: 0.0,
        rounds: None,
        stem: HEAD_STEM,
    })
}

/// Streams that a doubly stochastic matrix mixes, with the norms' `eps`.
pub(crate) fn read_mixed(hp: &Hparams<'_>, norm_eps: f32) -> Result<HyperSpec, ModelError> {
    const ROUNDS: &str = "hyper_connection.sinkhorn_iterations";
    let rounds = hp.need_u32(ROUNDS)?;
    if !(1..=MOST_ROUNDS).contains(&rounds) {
        return Err(hp.bad(ROUNDS, &format!("is {rounds}, must be between 1 and {MOST_ROUNDS}")));
    }
    let (rounds, magnitude) = (Some(rounds as usize), MAGNITUDE);
    Ok(HyperSpec { rounds, magnitude, ..read(hp, norm_eps)? })
}

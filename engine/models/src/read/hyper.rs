//! Reads what metadata say about hyper-connections, under the keys that their architectures share.

use brigade_spec::{GatedSpec, HyperSpec, ModelError};

use super::hparams::Hparams;

/// Stems of the tensors of a layer's two blocks.
const STEMS: [&str; 2] = ["hc_attn", "hc_ffn"];
/// Stem of the head's tensors, where it has some.
pub(crate) const HEAD_STEM: &str = "output_hc";
/// Greatest weight of a block's output where streams mix.
const MAGNITUDE: f32 = 2.0;
/// Most rounds that are believed; models have twenty.
const MOST_ROUNDS: u32 = 1000;
/// Most streams that are believed; models have four.
const MOST_STREAMS: usize = 64;

/// How many streams a token has.
fn count(hp: &Hparams<'_>) -> Result<usize, ModelError> {
    const COUNT: &str = "hyper_connection.count";
    match hp.need_u32(COUNT)? as usize {
        n if (2..=MOST_STREAMS).contains(&n) => Ok(n),
        n => Err(hp.bad(COUNT, &format!("is {n}, must be between 2 and {MOST_STREAMS}"))),
    }
}

/// Streams with a gate for each value.
pub(crate) fn read_gated(hp: &Hparams<'_>, eps: f32) -> Result<GatedSpec, ModelError> {
    const RANK: &str = "hyper_connection.low_rank";
    match hp.need_u32(RANK)? as usize {
        0 => Err(hp.bad(RANK, "must be positive")),
        rank => Ok(GatedSpec { n: count(hp)?, rank, eps, stems: STEMS, head_stem: HEAD_STEM }),
    }
}

/// Streams that do not mix, and that the head weighs, with the norms' `eps`.
pub(crate) fn read(hp: &Hparams<'_>, norm_eps: f32) -> Result<HyperSpec, ModelError> {
    Ok(HyperSpec {
        n: count(hp)?,
        norm_eps,
        eps: hp.need_f32("hyper_connection.epsilon")?,
        magnitude: 1.0,
        post_eps: 0.0,
        rounds: None,
        stems: STEMS,
        head_stem: Some(HEAD_STEM),
    })
}

/// Streams that a doubly stochastic matrix mixes, and whose mean the head reads, with the norms' `eps`.
pub(crate) fn read_mixed(hp: &Hparams<'_>, norm_eps: f32) -> Result<HyperSpec, ModelError> {
    const ROUNDS: &str = "hyper_connection.sinkhorn_iterations";
    let rounds = hp.need_u32(ROUNDS)?;
    if !(1..=MOST_ROUNDS).contains(&rounds) {
        return Err(hp.bad(ROUNDS, &format!("is {rounds}, must be between 1 and {MOST_ROUNDS}")));
    }
    let (rounds, magnitude) = (Some(rounds as usize), MAGNITUDE);
    Ok(HyperSpec { rounds, magnitude, head_stem: None, ..read(hp, norm_eps)? })
}

//! Reads what metadata say about adapters inside a model's file that tokens switch on.

use std::ops::RangeInclusive;

use brigade_spec::{ModelError, SwitchSpec};

use super::hparams::Hparams;

/// Most adapters: more could not be told apart where the cache has eight bits a value.
const MAX_SWITCHED: usize = 512;
/// Widest adapters, as in llama.cpp.
const MAX_RANK: usize = 4096;
/// Gains that every type of cache can hold.
const GAINS: RangeInclusive<f32> = 0.0..=60_000.0;
/// Gain of files that name none.
const USUAL_GAIN: f32 = 15.0;

/// Reads the keys `adapters.*`.
///
/// # Errors
/// A key is missing, or says what no model can have.
pub(crate) fn read(hp: &Hparams<'_>, n_vocab: usize) -> Result<SwitchSpec, ModelError> {
    let n = count(hp, "adapters.count", 0..=MAX_SWITCHED)?;
    let rank = count(hp, "adapters.lora_rank", 1..=MAX_RANK)?;
    let gain = hp.f32("adapters.router_gain")?.unwrap_or(USUAL_GAIN);
    if !GAINS.contains(&gain) {
        let problem = format!("is {gain}, must be {} to {}", GAINS.start(), GAINS.end());
        return Err(hp.bad("adapters.router_gain", &problem));
    }
    let ids = |key: &str| {
        let ids = hp.i32s(key)?.unwrap_or_default();
        if ids.len() != n {
            return Err(hp.bad(key, &format!("has {} tokens for {n} adapters", ids.len())));
        }
        let id = |id: i32| u32::try_from(id).ok().filter(|&id| (id as usize) < n_vocab);
        let ids: Option<Vec<u32>> = ids.into_iter().map(id).collect();
        ids.ok_or_else(|| hp.bad(key, &format!("has tokens beyond the vocabulary's {n_vocab}")))
    };
    let switching = ids("adapters.token_ids_activate")?;
    let embedded = ids("adapters.token_ids_substitute")?;
    // Of a token that is listed twice, the last entry counts.
    let tokens = switching.into_iter().zip((1..).zip(embedded)).collect();
    Ok(SwitchSpec { n_places: n + 1, rank, gain, tokens })
}

fn count(hp: &Hparams<'_>, key: &str, range: RangeInclusive<usize>) -> Result<usize, ModelError> {
    match hp.need_u32(key)? as usize {
        n if range.contains(&n) => Ok(n),
        n => {
            let problem = format!("is {n}, must be {} to {}", range.start(), range.end());
            Err(hp.bad(key, &problem))
        }
    }
}

//! Adapters inside a model's file that tokens switch on (Granite Switch): which tokens, and what becomes of their rows.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use super::Hparams;
use crate::error::ModelError;

/// Most adapters: more could not be told apart where the cache has eight bits a value.
const MAX_SWITCHED: usize = 512;
/// Widest adapters, as in llama.cpp.
const MAX_RANK: usize = 4096;
/// Gains that every type of cache can hold.
const GAINS: RangeInclusive<f32> = 0.0..=60_000.0;
/// Gain of files that name none.
const USUAL_GAIN: f32 = 15.0;

/// Low-rank adapters of a file's own. Each has a place in tensors `lora_a` and `lora_b` beside a projection's matrix. Place 0
/// is for rows without an adapter.
///
/// A token that switches an adapter on is embedded as another one. Which adapter a row uses is a weighted mean of places,
/// rounded: each token of its sequence so far has a place. A token that switches one on has that one's place and the weight
/// `exp(gain)`. Any other has place 0 and the weight `exp(-gain)`. So behind one such token it is that token's adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchSpec {
    /// Adapters, place 0 included.
    pub n_places: usize,
    /// Width in the middle of an adapter.
    pub rank: usize,
    /// See above.
    pub gain: f32,
    /// By token, the place of the adapter that it switches on, and the token as which it is embedded.
    pub tokens: BTreeMap<u32, (u32, u32)>,
}

/// What the block that finds the adapter of each row has of that.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwitchRouterSpec {
    /// As in [`SwitchSpec`].
    pub gain: f32,
    /// As in [`SwitchSpec`].
    pub n_places: usize,
}

impl SwitchRouterSpec {
    /// Values of its keys and of its values, of which one says something: as many as every type of cache can have.
    pub const WIDTH: usize = 32;
}

impl SwitchSpec {
    /// Reads `adapters.*`.
    ///
    /// # Errors
    /// A key is missing, or says what no model can have.
    pub(super) fn read(hp: &Hparams<'_>, n_vocab: usize) -> Result<Self, ModelError> {
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
        Ok(Self { n_places: n + 1, rank, gain, tokens })
    }

    /// The place of the adapter that a token switches on; 0: none.
    pub fn place_of(&self, token: u32) -> u32 {
        self.tokens.get(&token).map_or(0, |(place, _)| *place)
    }

    /// The token as which a token is embedded.
    pub fn embedded(&self, token: u32) -> u32 {
        self.tokens.get(&token).map_or(token, |(_, embedded)| *embedded)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_switch_and_are_embedded_as_others() {
        let tokens = [(7, (1, 3)), (9, (2, 9))].into();
        let switch = SwitchSpec { n_places: 3, rank: 4, gain: 15.0, tokens };
        assert_eq!([7, 8, 9].map(|token| switch.place_of(token)), [1, 0, 2]);
        assert_eq!([7, 8, 9].map(|token| switch.embedded(token)), [3, 8, 9]);
    }
}

//! Draws a token from a row of logits.
//!
//! The result depends on the row, the settings, the history and the position alone: not on other rows,
//! earlier calls, threads or the machine. So every exponential and logarithm goes through `libm`, sums run in
//! a fixed order, equal logits are ordered by id, and the random number of a position is computed, not drawn
//! from a stream.
//!
//! The chain is llama.cpp's default one: logit bias, penalties, top-k, typical, top-p, min-p, temperature,
//! draw. Nothing here knows text, stop conditions or sequences.

mod filters;
mod logprobs;
mod penalties;
mod rng;
#[cfg(test)]
mod tests;

use crate::batch::{SampledToken, SamplerSetup, SamplingParams};
use filters::Candidates;
use penalties::Penalties;

pub use logprobs::{log_prob, log_sum_exp};
pub use rng::uniform;

/// Why a row gives no token.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The model computed nonsense (or the weights are damaged).
    #[error("logit {index} of the row is {value}: the model's output is not usable")]
    NotFinite {
        /// Token id.
        index: usize,
        /// The value found.
        value: f32,
    },
    /// The row has no entries.
    #[error("the row of logits is empty")]
    Empty,
    /// Bias and filters leave nothing.
    #[error("no token is left to choose from: every logit is -inf after the logit bias")]
    NothingLeft,
    /// A token id from the request that the vocabulary does not have.
    #[error("token id {id} in {what} is outside the vocabulary of {n_vocab} tokens")]
    BadToken {
        /// The id.
        id: u32,
        /// Where it was given.
        what: &'static str,
        /// Size of the row.
        n_vocab: usize,
    },
    /// A setting outside its range.
    #[error("sampling setting {name} is {value}, it must be {wanted}")]
    BadSetting {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: f32,
        /// What it must be.
        wanted: &'static str,
    },
}

/// Runs the chain. Holds only scratch space, which is reused from row to row.
#[derive(Default)]
pub struct Sampler {
    row: Vec<f32>,
    candidates: Candidates,
    penalties: Penalties,
}

impl Sampler {
    /// A sampler with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Draws the token that follows `history`.
    ///
    /// `logits`: `[n_vocab]`, raw. `history`: the sequence's tokens so far, prompt included.
    /// `pos`: position of the new token, which with the seed fixes the random number.
    ///
    /// # Errors
    /// A logit is NaN or `+inf`, nothing is left to choose, or an id of the bias is out of range.
    pub fn sample(
        &mut self,
        logits: &[f32],
        setup: &SamplerSetup,
        history: &[u32],
        pos: u32,
    ) -> Result<SampledToken, SampleError> {
        check_row(logits)?;
        let params = &setup.params;
        let penalised = self.penalties.count(params, history, logits.len())?;
        let row = if params.logit_bias.is_empty() && !penalised {
            logits
        } else {
            self.row.clear();
            self.row.extend_from_slice(logits);
            add_bias(&mut self.row, &params.logit_bias)?;
            self.penalties.apply(params, &mut self.row);
            check_row(&self.row)?;
            &self.row
        };
        let id = choose(&mut self.candidates, row, params, setup.seed, pos)?;
        let (logprob, top) = match setup.top_logprobs {
            None => (None, Vec::new()),
            Some(n) => {
                let (own, top) = logprobs::top(&mut self.candidates, logits, id, n as usize)?;
                (Some(own), top)
            }
        };
        Ok(SampledToken { id, logprob, top })
    }
}

/// Refuses settings that have no meaning, before a request is admitted.
///
/// # Errors
/// The first setting that is NaN or out of range.
pub fn check_params(params: &SamplingParams) -> Result<(), SampleError> {
    let finite: [(&str, f32); 6] = [
        ("temperature", params.temperature),
        ("top_p", params.top_p),
        ("min_p", params.min_p),
        ("typical_p", params.typical_p),
        ("frequency_penalty", params.frequency_penalty),
        ("presence_penalty", params.presence_penalty),
    ];
    for (name, value) in finite {
        if !value.is_finite() {
            return Err(SampleError::BadSetting { name, value, wanted: "a finite number" });
        }
    }
    let r = params.repeat_penalty;
    if !(r.is_finite() && r > 0.0) {
        let (name, wanted) = ("repeat_penalty", "a number above 0");
        return Err(SampleError::BadSetting { name, value: r, wanted });
    }
    match params.logit_bias.iter().find(|(_, b)| b.is_nan() || *b == f32::INFINITY) {
        Some(&(_, value)) => {
            let (name, wanted) = ("logit_bias", "a number or -inf");
            Err(SampleError::BadSetting { name, value, wanted })
        }
        None => Ok(()),
    }
}

fn check_row(row: &[f32]) -> Result<(), SampleError> {
    if row.is_empty() {
        return Err(SampleError::Empty);
    }
    // Branch-free over the row; the culprit is only looked for once there is one.
    let good = |l: &f32| *l < f32::INFINITY;
    if row.iter().fold(true, |all, l| all & good(l)) {
        return Ok(());
    }
    let index = row.iter().position(|l| !good(l)).unwrap_or(0);
    Err(SampleError::NotFinite { index, value: row[index] })
}

fn add_bias(row: &mut [f32], bias: &[(u32, f32)]) -> Result<(), SampleError> {
    let n_vocab = row.len();
    for &(id, b) in bias {
        let logit = row.get_mut(id as usize).ok_or(SampleError::BadToken {
            id,
            what: "logit_bias",
            n_vocab,
        })?;
        *logit += b;
    }
    Ok(())
}

fn choose(
    candidates: &mut Candidates,
    row: &[f32],
    params: &SamplingParams,
    seed: u64,
    pos: u32,
) -> Result<u32, SampleError> {
    let greedy = params.temperature <= 0.0;
    // The maximum survives every filter but the typical one.
    if greedy && params.typical_p >= 1.0 {
        let best = first_maximum(row);
        return if row[best] == f32::NEG_INFINITY {
            Err(SampleError::NothingLeft)
        } else {
            Ok(best as u32)
        };
    }
    candidates.take_top_k(row, params.top_k as usize);
    if candidates.is_empty() {
        return Err(SampleError::NothingLeft);
    }
    candidates.typical(params.typical_p);
    candidates.top_p(params.top_p);
    candidates.min_p(params.min_p);
    if greedy {
        return Ok(candidates.best().id);
    }
    Ok(candidates.draw(params.temperature, uniform(seed, pos)))
}

/// Index of the first of the largest values.
fn first_maximum(row: &[f32]) -> usize {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    row.iter().position(|l| *l == max).unwrap_or(0)
}

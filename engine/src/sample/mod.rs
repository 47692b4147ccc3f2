//! Draws a token from a row of logits.
//!
//! The result depends on the row, the settings, the history, the position and mirostat's mu alone: not on other rows,
//! earlier calls, threads or the machine. So every exponential and logarithm goes through `libm`, and sums run in a
//! fixed order. Equal logits are ordered by id. The random number of a position is computed, not drawn from a stream.
//!
//! Where two rows companion a draw ([`Companion`](crate::batch::Companion)) they are made one before anything else
//! (`companion`). The chain is llama.cpp's default one: logit bias, mask, penalties, DRY, top-n-sigma, top-k, typical, top-p,
//! min-p, XTC, temperature, draw. Mirostat takes the place of what is between DRY and the draw. Nothing here knows
//! text, stop conditions or sequences.

mod companion;
mod dry;
mod filters;
mod logprobs;
mod mirostat;
mod penalties;
mod rng;
#[cfg(test)]
mod tests;

use brigade_sampling::{Rule, SETTINGS, Sound, Value};

use crate::batch::{DraftedToken, NotBefore, SampledToken, SamplerSetup, SamplingParams};
use crate::constraint::Mask;
use dry::Dry;
use filters::{Candidates, Row, choose, takes_maximum};
use penalties::Penalties;

pub use logprobs::{log_prob, log_probs, log_sum_exp};
pub use rng::uniform;

/// Reasons why no token can be drawn from a row.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// The model computed nonsense (or the weights are damaged).
    #[error("logit {index} of the row is {value}: the model's output is not usable")]
    NotFinite {
        /// Id of the token.
        index: usize,
        /// Value of the logit.
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
        /// Token id that was given.
        id: u32,
        /// Setting in which it was given.
        what: &'static str,
        /// Size of the row.
        n_vocab: usize,
    },
    /// A setting outside its range.
    #[error("sampling setting {name} is {value}, it must be {wanted}")]
    BadSetting {
        /// Name of the setting.
        name: &'static str,
        /// Value that was given.
        value: f32,
        /// Values that are allowed.
        wanted: &'static str,
    },
}

impl SampleError {
    /// Whether a stage's word about why it drew no token is that the request's own bans leave none.
    pub fn is_nothing_left(reason: &str) -> bool {
        reason.contains(&Self::NothingLeft.to_string())
    }
}

/// The sampling chain of a stage. Holds only scratch space, which is reused from row to row.
#[derive(Default)]
pub struct Sampler {
    row: Vec<f32>,
    candidates: Candidates,
    penalties: Penalties,
    dry: Dry,
}

impl Sampler {
    /// A sampler with empty buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Draws the token that follows `history`.
    ///
    /// `logits`: `[n_vocab]`, raw. `history`: the sequence's tokens so far, prompt included.
    /// `next`: where the new token goes, and what may be there.
    ///
    /// # Errors
    /// A logit is NaN or `+inf`, nothing is left to choose, or an id of the bias is out of range.
    pub fn sample(
        &mut self,
        logits: &[f32],
        setup: &SamplerSetup,
        history: &[u32],
        next: Next<'_>,
    ) -> Result<SampledToken, SampleError> {
        check_row(logits)?;
        let Next { pos, mask, mu } = next;
        let params = &setup.params;
        let penalised = self.penalties.count(params, history, logits.len())?;
        let repeats = self.dry.find(&params.dry, history, logits.len())?;
        let held = setup.not_before.holds(pos);
        let is_raw = params.logit_bias.is_empty() && !penalised && !repeats && !held;
        let row = if is_raw && mask.is_none() {
            logits
        } else {
            self.row.clear();
            self.row.extend_from_slice(logits);
            add_bias(&mut self.row, &params.logit_bias)?;
            if let Some(mask) = mask {
                mask.apply(&mut self.row);
            }
            if held {
                ban(&mut self.row, &setup.not_before)?;
            }
            self.penalties.apply(params, &mut self.row);
            self.dry.apply(&params.dry, &mut self.row);
            check_row(&self.row)?;
            &self.row
        };
        let (id, mu) = match &params.mirostat {
            Some(goal) if params.temperature > 0.0 => {
                let (temperature, u) = (params.temperature, uniform(setup.seed, pos));
                let draw = mirostat::Draw { row, temperature, mu, u };
                let (id, mu) = mirostat::draw(goal, &mut self.candidates, draw)?;
                (id, Some(mu))
            }
            _ => (choose(&mut self.candidates, Row::All(row), params, setup.seed, pos)?, None),
        };
        let (logprob, top) = match setup.top_logprobs {
            None => (None, Vec::new()),
            Some(n) => {
                let (own, top) = logprobs::top(&mut self.candidates, logits, id, n as usize)?;
                (Some(own), top)
            }
        };
        Ok(SampledToken { id, logprob, top, mu, ..SampledToken::default() })
    }

    /// Draws the token that follows `history` as a draft: as [`Sampler::sample`] would of this row, with the probability that it
    /// had among all that could be drawn.
    ///
    /// # Errors
    /// As of [`Sampler::sample`].
    pub fn draft(
        &mut self,
        logits: &[f32],
        setup: &SamplerSetup,
        history: &[u32],
        pos: u32,
    ) -> Result<DraftedToken, SampleError> {
        let id = self.sample(logits, setup, history, Next { pos, ..Next::default() })?.id;
        let odds = if takes_maximum(&setup.params) {
            libm::exp(log_prob(logits, id)?)
        } else {
            self.candidates.share_of(id)
        };
        Ok(DraftedToken { id, odds: odds.clamp(0.0, 1.0) as f32 })
    }

    /// [`Sampler::sample`] where the draw looks at no other logits than these ([`looks_at`]): ids ascend, and so many of the best
    /// are among them, the smaller ids of equal ones. All logits of the row are finite or -inf.
    ///
    /// # Errors
    /// Nothing is left to choose.
    pub fn sample_few(
        &mut self,
        few: &[(u32, f32)],
        setup: &SamplerSetup,
        pos: u32,
    ) -> Result<SampledToken, SampleError> {
        let row = Row::Few(few);
        let id = choose(&mut self.candidates, row, &setup.params, setup.seed, pos)?;
        Ok(SampledToken { id, ..SampledToken::default() })
    }
}

/// The place of a token that is to be drawn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Next<'a> {
    /// Position of the token, which with the seed fixes the random number.
    pub pos: u32,
    /// Tokens that may be there; `None`: all.
    pub mask: Option<&'a Mask>,
    /// Mirostat's mu after the token before it; `None`: this is the first one.
    pub mu: Option<f32>,
}

/// Number of greatest logits that the draw of the token at `pos` looks at, whatever the history is. They are taken as
/// they are. `None` where the draw looks at other logits too, or more is asked than the token.
pub fn looks_at(setup: &SamplerSetup, pos: u32) -> Option<usize> {
    let SamplerSetup { params, top_logprobs, not_before, constraint, companion, .. } = setup;
    let is_plain = top_logprobs.is_none() && constraint.is_none() && companion.is_none();
    let is_raw = params.logit_bias.is_empty()
        && penalties::are_off(params)
        && dry::is_off(&params.dry)
        && !not_before.holds(pos);
    // Where the maximum is taken, no surprise counts.
    let is_filtered = !params.keeps_surprise() || takes_maximum(params);
    filters::looks_at(params).filter(|_| is_plain && is_raw && is_filtered)
}

/// Refuses settings that have no meaning, before a request is admitted.
///
/// # Errors
/// The first setting that is NaN or out of range.
pub fn check_params(params: &SamplingParams) -> Result<(), SampleError> {
    for setting in SETTINGS {
        let (Rule::Number { sound, .. }, Value::Number(value)) =
            (setting.rule, setting.get(params))
        else {
            continue;
        };
        let (is_good, wanted) = match sound {
            Sound::Finite => (true, "a finite number"),
            Sound::AboveZero => (value > 0.0, "a number above 0"),
            Sound::FromZero => (value >= 0.0, "a number from 0"),
        };
        if !(value.is_finite() && is_good) {
            return Err(SampleError::BadSetting { name: setting.name, value, wanted });
        }
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

impl NotBefore {
    /// Whether its tokens may not be drawn for position `pos`.
    fn holds(&self, pos: u32) -> bool {
        pos < self.pos && !self.tokens.is_empty()
    }
}

fn ban(row: &mut [f32], not_before: &NotBefore) -> Result<(), SampleError> {
    let n_vocab = row.len();
    for &id in not_before.tokens.iter() {
        let what = "the tokens that may not come yet";
        *row.get_mut(id as usize).ok_or(SampleError::BadToken { id, what, n_vocab })? =
            f32::NEG_INFINITY;
    }
    Ok(())
}

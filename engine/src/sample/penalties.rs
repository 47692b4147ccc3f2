//! Penalties on tokens that occur among the last ones of a sequence: repeat, frequency and presence.

use std::collections::BTreeMap;

use super::SampleError;
use crate::batch::SamplingParams;

/// Number of occurrences of each token in the window.
#[derive(Default)]
pub(super) struct Penalties {
    counts: BTreeMap<u32, u32>,
}

/// Whether there are none.
pub(super) fn are_off(params: &SamplingParams) -> bool {
    params.repeat_penalty == 1.0
        && params.frequency_penalty == 0.0
        && params.presence_penalty == 0.0
}

impl Penalties {
    /// Counts the window; tells whether there is anything to apply.
    pub fn count(
        &mut self,
        params: &SamplingParams,
        history: &[u32],
        n_vocab: usize,
    ) -> Result<bool, SampleError> {
        self.counts.clear();
        if are_off(params) {
            return Ok(false);
        }
        let window = history.len().min(params.penalty_last_n as usize);
        for &id in &history[history.len() - window..] {
            if id as usize >= n_vocab {
                return Err(SampleError::BadToken { id, what: "the history", n_vocab });
            }
            *self.counts.entry(id).or_insert(0) += 1;
        }
        Ok(!self.counts.is_empty())
    }

    /// `l <= 0: l * r, else l / r; then l -= count * frequency + presence`.
    pub fn apply(&self, params: &SamplingParams, row: &mut [f32]) {
        for (&id, &count) in &self.counts {
            let logit = &mut row[id as usize];
            if *logit <= 0.0 {
                *logit *= params.repeat_penalty;
            } else {
                *logit /= params.repeat_penalty;
            }
            *logit -= count as f32 * params.frequency_penalty + params.presence_penalty;
        }
    }
}

//! DRY ("don't repeat yourself"): tokens that would go on with a run that has been there before.
//!
//! The run is the end of the history. Where the same tokens stand earlier, the token behind them would make
//! the run longer, and loses `multiplier * base^(length - allowed_length)`.

use std::collections::BTreeMap;

use super::SampleError;
use crate::batch::DryParams;

/// Largest exponent of the penalty that stays finite in f32, as a natural logarithm.
const MAX_LOG: f32 = 88.0;

/// Penalties of the DRY sampler by token; scratch space stays from row to row.
#[derive(Default)]
pub(super) struct Dry {
    reversed: Vec<u32>,
    /// `[i]`: as many tokens from `reversed[i]` on equal those from its beginning.
    matches: Vec<u32>,
    longest: BTreeMap<u32, u32>,
}

/// Whether no token loses anything.
pub(super) fn is_off(params: &DryParams) -> bool {
    params.multiplier <= 0.0 || params.base < 1.0
}

impl Dry {
    /// Looks for runs; tells whether there is anything to apply.
    pub fn find(
        &mut self,
        params: &DryParams,
        history: &[u32],
        n_vocab: usize,
    ) -> Result<bool, SampleError> {
        self.longest.clear();
        if is_off(params) {
            return Ok(false);
        }
        let window = history.len().min(params.last_n as usize);
        self.reversed.clear();
        self.reversed.extend(history[history.len() - window..].iter().rev());
        let is_breaker = |id: &u32| params.breakers.binary_search(id).is_ok();
        let limit = self.reversed.iter().position(is_breaker).unwrap_or(window) as u32;
        if limit < params.allowed_length.max(1) {
            return Ok(false);
        }
        self.count_matches();
        for i in 1..self.reversed.len() {
            let length = self.matches[i].min(limit);
            let next = self.reversed[i - 1];
            if length >= params.allowed_length.max(1) && !is_breaker(&next) {
                if next as usize >= n_vocab {
                    return Err(SampleError::BadToken { id: next, what: "the history", n_vocab });
                }
                let longest = self.longest.entry(next).or_insert(0);
                *longest = length.max(*longest);
            }
        }
        Ok(!self.longest.is_empty())
    }

    /// The Z-function of the reversed window, in linear time (Gusfield 1997, 1.4).
    fn count_matches(&mut self) {
        let n = self.reversed.len();
        self.matches.clear();
        self.matches.resize(n, 0);
        let (mut left, mut right) = (0, 0);
        for i in 1..n {
            let mut length =
                if i < right { (self.matches[i - left] as usize).min(right - i) } else { 0 };
            while i + length < n && self.reversed[length] == self.reversed[i + length] {
                length += 1;
            }
            if i + length > right {
                (left, right) = (i, i + length);
            }
            self.matches[i] = length as u32;
        }
    }

    /// Takes the penalties off the logits.
    pub fn apply(&self, params: &DryParams, row: &mut [f32]) {
        let most = match libm::logf(params.base) {
            log if log > 0.0 => MAX_LOG / log,
            _ => 0.0,
        };
        for (&id, &length) in &self.longest {
            let exponent = (length - params.allowed_length.min(length)) as f32;
            row[id as usize] -= params.multiplier * libm::powf(params.base, exponent.min(most));
        }
    }
}

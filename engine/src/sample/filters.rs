//! The chain from a row to a token: the list of tokens that may still be drawn, and the filters that shorten it. `l` is a
//! logit, and `p` the softmax over the tokens that are left.

use std::cmp::Ordering;

use super::{SampleError, uniform};
use crate::batch::SamplingParams;

/// Logits of a row.
#[derive(Clone, Copy)]
pub(super) enum Row<'a> {
    /// All logits, `[n_vocab]`.
    All(&'a [f32]),
    /// Ids and logits of those that the draw looks at, or more; ids ascend.
    Few(&'a [(u32, f32)]),
}

/// XORed into the seed, so that XTC's decision and the token's draw use independent random numbers.
const XTC_STREAM: u64 = 0x5854_4358_5443_5854;

/// Shortens the row's tokens as the settings say, and takes one of those that are left.
///
/// # Errors
/// Nothing is left to choose.
pub(super) fn choose(
    candidates: &mut Candidates,
    row: Row<'_>,
    params: &SamplingParams,
    seed: u64,
    pos: u32,
) -> Result<u32, SampleError> {
    let greedy = params.temperature <= 0.0;
    if takes_maximum(params) {
        return match first_maximum(row) {
            Some((id, logit)) if logit > f32::NEG_INFINITY => Ok(id),
            _ => Err(SampleError::NothingLeft),
        };
    }
    match row {
        Row::All(row) => candidates.take_top_k(row, params.top_k as usize),
        Row::Few(few) => candidates.take_top_k_of(few, params.top_k as usize),
    }
    if candidates.is_empty() {
        return Err(SampleError::NothingLeft);
    }
    if let Row::All(row) = row {
        candidates.top_n_sigma(row, params.top_n_sigma);
    }
    candidates.typical(params.typical_p);
    candidates.top_p(params.top_p);
    candidates.min_p(params.min_p);
    if greedy {
        return Ok(candidates.best().id);
    }
    // Above one half there is at most one such token.
    let excludes = params.xtc_probability > 0.0 && params.xtc_threshold <= 0.5;
    if excludes && uniform(seed ^ XTC_STREAM, pos) < f64::from(params.xtc_probability) {
        candidates.exclude_top_choices(params.xtc_threshold);
    }
    let (mean, range) = (params.temperature, params.dynatemp_range);
    let temperature = if range > 0.0 {
        let low = (mean - range).max(0.0);
        candidates.dynamic_temperature(low, mean + range, params.dynatemp_exponent)
    } else {
        mean
    };
    if temperature <= 0.0 {
        return Ok(candidates.best().id);
    }
    Ok(candidates.draw(temperature, uniform(seed, pos)))
}

/// Whether filters and draw leave the maximum: it survives every filter but the typical one.
pub(super) fn takes_maximum(params: &SamplingParams) -> bool {
    params.temperature <= 0.0 && params.typical_p >= 1.0
}

/// Number of greatest logits that the filters look at; `None` where they may look at all.
pub(super) fn looks_at(params: &SamplingParams) -> Option<usize> {
    if takes_maximum(params) {
        return Some(1);
    }
    let some_only = params.top_k > 0 && params.top_n_sigma <= 0.0;
    some_only.then_some(params.top_k as usize)
}

/// The first of the largest logits and its id.
fn first_maximum(row: Row<'_>) -> Option<(u32, f32)> {
    match row {
        Row::All(row) => {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter().position(|l| *l == max).map(|id| (id as u32, max))
        }
        Row::Few(few) => {
            few.iter().copied().reduce(|best, next| if next.1 > best.1 { next } else { best })
        }
    }
}

/// A token that may still be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Candidate {
    pub id: u32,
    pub logit: f32,
}

/// Surprise of a weight's share of `sum`.
fn bits(weight: f32, sum: f64) -> f32 {
    -libm::log2(f64::from(weight) / sum) as f32
}

/// Best first; equal logits by id.
fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Extra room of the top-k scan: the buffer is cut back to k each time it is full.
const TOP_K_SLACK: usize = 1024;
/// First length that top-p sorts; it grows by [`TOP_P_GROWTH`] while the sum is too small.
const TOP_P_FIRST: usize = 256;
const TOP_P_GROWTH: usize = 8;

/// The candidates, in id order until a filter sorts them.
#[derive(Default)]
pub(super) struct Candidates {
    list: Vec<Candidate>,
    /// Weights `exp(l - max)`, aligned with `list` while a filter runs.
    weights: Vec<f32>,
}

impl Candidates {
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Ids in the list's order.
    #[cfg(test)]
    pub fn ids(&self) -> Vec<u32> {
        self.list.iter().map(|c| c.id).collect()
    }

    /// Fills the list with the `k` best of `row` (all if `k` is 0), leaving out `-inf`.
    ///
    /// One pass: a logit that does not beat the k-th best so far is skipped. An equal one is, too,
    /// since its id is larger.
    pub fn take_top_k(&mut self, row: &[f32], k: usize) {
        let all = k == 0 || k >= row.len();
        self.take((0..).zip(row.iter().copied()), k, all);
    }

    /// [`Self::take_top_k`] of a row of which some ids and their logits are given: ids ascend, and the `k` best are among them.
    pub fn take_top_k_of(&mut self, few: &[(u32, f32)], k: usize) {
        self.take(few.iter().copied(), k, false);
    }

    fn take(&mut self, row: impl Iterator<Item = (u32, f32)>, k: usize, all: bool) {
        self.list.clear();
        let mut bar = f32::NEG_INFINITY;
        for (id, logit) in row {
            if logit <= bar {
                continue;
            }
            // Adding zero turns -0.0 into 0.0, so that the two are equal under `total_cmp`.
            self.list.push(Candidate { id, logit: logit + 0.0 });
            if !all && self.list.len() >= k + TOP_K_SLACK {
                self.list.select_nth_unstable_by(k - 1, by_logit);
                self.list.truncate(k);
                bar = self.list[k - 1].logit;
            }
        }
        if !all {
            if self.list.len() > k {
                self.list.select_nth_unstable_by(k - 1, by_logit);
                self.list.truncate(k);
            }
            self.list.sort_unstable_by(by_logit);
        }
    }

    /// The `n` best of `row` in order, `n` above 0; fewer if the row has fewer above `-inf`.
    pub fn best_of(&mut self, row: &[f32], n: usize) -> &[Candidate] {
        self.take_top_k(row, n);
        self.list.sort_unstable_by(by_logit);
        &self.list
    }

    /// The best candidate, the smallest id among equals.
    pub fn best(&self) -> Candidate {
        *self.list.iter().min_by(|a, b| by_logit(a, b)).expect("callers check for emptiness")
    }

    /// Fills `weights` and gives their sum.
    fn weigh(&mut self) -> f64 {
        let max = self.best().logit;
        self.weights.clear();
        self.weights.extend(self.list.iter().map(|c| libm::expf(c.logit - max)));
        self.weights.iter().map(|w| f64::from(*w)).sum()
    }

    /// Keeps the candidates whose surprise `-ln p` is nearest to the entropy until their sum of p
    /// exceeds `limit` (off from 1). The result is in order of that distance.
    pub fn typical(&mut self, limit: f32) {
        if limit >= 1.0 {
            return;
        }
        let sum = self.weigh();
        let surprise = |w: f32| -libm::log(f64::from(w) / sum);
        let entropy: f64 = self
            .weights
            .iter()
            .filter(|w| **w > 0.0)
            .map(|w| f64::from(*w) / sum * surprise(*w))
            .sum();
        let mut order: Vec<(f64, f64, Candidate)> = self
            .list
            .iter()
            .zip(&self.weights)
            .map(|(c, &w)| ((surprise(w) - entropy).abs(), f64::from(w) / sum, *c))
            .collect();
        order.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(by_logit(&a.2, &b.2)));
        let mut total = 0.0;
        self.list.clear();
        for (_, p, candidate) in order {
            total += p;
            self.list.push(candidate);
            if total > f64::from(limit) {
                break;
            }
        }
    }

    /// Keeps the shortest run of best candidates whose p sum to at least `limit` (off from 1).
    pub fn top_p(&mut self, limit: f32) {
        if limit >= 1.0 {
            return;
        }
        let sum = self.weigh();
        let max = self.best().logit;
        let goal = f64::from(limit) * sum;
        let mut sorted = 0;
        let mut total = 0.0;
        let mut step = TOP_P_FIRST;
        while sorted < self.list.len() {
            let end = (sorted + step).min(self.list.len());
            let rest = &mut self.list[sorted..];
            if end - sorted < rest.len() {
                rest.select_nth_unstable_by(end - sorted - 1, by_logit);
            }
            self.list[sorted..end].sort_unstable_by(by_logit);
            for i in sorted..end {
                total += f64::from(libm::expf(self.list[i].logit - max));
                if total >= goal {
                    self.list.truncate(i + 1);
                    return;
                }
            }
            sorted = end;
            step *= TOP_P_GROWTH;
        }
    }

    /// Keeps `l >= l_max + ln(share)`; off from 0 down. The best always stays.
    pub fn min_p(&mut self, share: f32) {
        if share <= 0.0 {
            return;
        }
        let max = self.best().logit;
        let bar = max + libm::logf(share).min(0.0);
        self.list.retain(|c| c.logit >= bar);
    }

    /// Keeps logits within `n` standard deviations of the largest of `row`; off from 0 down. Values of `-inf`
    /// count for nothing.
    pub fn top_n_sigma(&mut self, row: &[f32], n: f32) {
        if n <= 0.0 {
            return;
        }
        let finite = || row.iter().filter(|l| **l > f32::NEG_INFINITY).map(|l| f64::from(*l));
        let count = finite().count() as f64;
        let mean = finite().sum::<f64>() / count;
        let variance = finite().map(|l| (l - mean) * (l - mean)).sum::<f64>() / count;
        let max = self.best().logit;
        let bar = f64::from(max) - f64::from(n) * variance.sqrt();
        self.list.retain(|c| f64::from(c.logit) >= bar || c.logit == max);
    }

    /// Leaves out all but the least probable of the candidates whose p is at least `threshold`.
    pub fn exclude_top_choices(&mut self, threshold: f32) {
        self.list.sort_unstable_by(by_logit);
        let goal = f64::from(threshold) * self.weigh();
        let above = self.weights.iter().take_while(|w| f64::from(**w) >= goal).count();
        self.list.drain(..above.saturating_sub(1));
    }

    /// The temperature between `low` and `high` that the entropy asks for: its share of the largest entropy that
    /// so many candidates can have, to the power of `exponent`.
    pub fn dynamic_temperature(&mut self, low: f32, high: f32, exponent: f32) -> f32 {
        if self.list.len() < 2 {
            return high;
        }
        let sum = self.weigh();
        let p = self.weights.iter().map(|w| f64::from(*w) / sum).filter(|p| *p > 0.0);
        let entropy: f64 = p.map(|p| -p * libm::log(p)).sum();
        let share = (entropy / libm::log(self.list.len() as f64)).clamp(0.0, 1.0);
        low + (high - low) * libm::powf(share as f32, exponent)
    }

    /// Divides the logits by `temperature`, measured from the largest: a tiny one must not overflow them.
    pub fn at_temperature(&mut self, temperature: f32) {
        let max = self.best().logit;
        for candidate in &mut self.list {
            candidate.logit = (candidate.logit - max) / temperature;
        }
    }

    /// Keeps the candidates whose `-log2 p` is at most `limit`. The best always stays.
    pub fn no_more_surprising_than(&mut self, limit: f32) {
        let sum = self.weigh();
        let best = self.best();
        let mut weights = self.weights.iter();
        self.list.retain(|candidate| {
            let weight = weights.next().copied().unwrap_or(0.0);
            bits(weight, sum) <= limit || candidate.id == best.id
        });
    }

    /// `-log2 p` of a candidate.
    pub fn surprise(&mut self, id: u32) -> f32 {
        let sum = self.weigh();
        let of = self.list.iter().zip(&self.weights).find(|(candidate, _)| candidate.id == id);
        of.map_or(f32::INFINITY, |(_, weight)| bits(*weight, sum))
    }

    /// A candidate's share of the weights with which the last one was drawn.
    pub fn share_of(&mut self, id: u32) -> f64 {
        if self.weights.len() != self.list.len() {
            self.weigh();
        }
        let sum: f64 = self.weights.iter().map(|w| f64::from(*w)).sum();
        let of = self.list.iter().zip(&self.weights).find(|(candidate, _)| candidate.id == id);
        of.map_or(0.0, |(_, weight)| f64::from(*weight) / sum)
    }

    /// Divides the logits by `temperature`, and takes the first candidate at which the running sum
    /// of weights exceeds the share `u` of their total.
    pub fn draw(&mut self, temperature: f32, u: f64) -> u32 {
        let max = self.best().logit;
        self.weights.clear();
        // Dividing the difference keeps a tiny temperature from overflowing the logits.
        let weight = |c: &Candidate| libm::expf((c.logit - max) / temperature);
        self.weights.extend(self.list.iter().map(weight));
        let goal = u * self.weights.iter().map(|w| f64::from(*w)).sum::<f64>();
        let mut total = 0.0;
        let mut last = self.best().id;
        for (candidate, &w) in self.list.iter().zip(&self.weights) {
            if w > 0.0 {
                total += f64::from(w);
                last = candidate.id;
                if total > goal {
                    break;
                }
            }
        }
        last
    }
}

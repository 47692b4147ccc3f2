//! Bytes of every range of a model's layers, from running sums.

use std::collections::BTreeSet;
use std::ops::Range;

use super::PlanSettings;
use super::facts::{LayerFacts, ModelFacts};

/// Bytes of layers `0..i`, by what for.
pub(super) struct LayerSums {
    weights: Vec<u64>,
    /// The part of the weights that is routed experts.
    routed: Vec<u64>,
    /// The first layer that has the weights of each layer, where some layers have those of others.
    firsts: Option<Vec<usize>>,
    /// A position's, where the cache grows with the sequence.
    kv: Vec<u64>,
    windows: Vec<WindowBytes>,
    /// A sequence's recurrent states.
    state: Vec<u64>,
}

/// Bytes of pages of layers with windows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WindowBytes {
    /// All pages that one sequence needs.
    pub of_each: u64,
    /// One page of each layer.
    pub page: u64,
}

impl LayerSums {
    pub(super) fn new(model: &ModelFacts, settings: &PlanSettings) -> Self {
        let layers = &model.layers;
        let bytes = |of: &dyn Fn(&LayerFacts) -> u64| {
            running(layers, 0, |sum: u64, layer| sum.saturating_add(of(layer)))
        };
        let shares = layers.iter().any(|layer| layer.same_weights.is_some());
        let first = |(at, layer): (usize, &LayerFacts)| layer.same_weights.unwrap_or(at);
        Self {
            weights: bytes(&|l| l.weight_bytes),
            routed: bytes(&|l| l.routed_bytes),
            firsts: shares.then(|| layers.iter().enumerate().map(first).collect()),
            kv: bytes(&|l| l.growing_kv(settings.windows)),
            windows: running(layers, WindowBytes::default(), |sum: WindowBytes, layer| {
                let page = layer.window_page(settings.windows);
                let of_each = page.saturating_mul(layer.pages_of_each());
                WindowBytes {
                    of_each: sum.of_each.saturating_add(of_each),
                    page: sum.page.saturating_add(page),
                }
            }),
            state: bytes(&LayerFacts::state_bytes),
        }
    }

    /// Whether a sequence takes memory that does not depend on its length.
    pub(super) fn has_states(&self) -> bool {
        let windows = self.windows.last().is_some_and(|windows| windows.of_each > 0);
        windows || self.state.last().is_some_and(|bytes| *bytes > 0)
    }

    /// A position's bytes in the growing caches of layers `range`.
    pub(super) fn kv(&self, range: &Range<usize>) -> u64 {
        of(&self.kv, range)
    }

    /// A sequence's bytes in the recurrent states of layers `range`.
    pub(super) fn state(&self, range: &Range<usize>) -> u64 {
        of(&self.state, range)
    }

    /// What windows of layers `range` need.
    pub(super) fn windows(&self, range: &Range<usize>) -> WindowBytes {
        let (before, upto) = (self.windows[range.start], self.windows[range.end]);
        WindowBytes { of_each: upto.of_each - before.of_each, page: upto.page - before.page }
    }

    /// Bytes of the weights of layers `range` that are not those of layers `besides`. Weights that several layers have
    /// count once.
    pub(super) fn weights(&self, range: &Range<usize>, besides: &Range<usize>) -> u64 {
        self.once(&self.weights, range, besides)
    }

    /// Bytes of the routed experts of layers `range`. Weights that several layers have count once.
    pub(super) fn routed(&self, range: &Range<usize>) -> u64 {
        self.once(&self.routed, range, &(0..0))
    }

    /// The sum over the different weights of layers `range` that layers `besides` do not have.
    fn once(&self, sums: &[u64], range: &Range<usize>, besides: &Range<usize>) -> u64 {
        let Some(firsts) = &self.firsts else {
            let both = range.start.max(besides.start)..range.end.min(besides.end);
            return of(sums, range) - if both.is_empty() { 0 } else { of(sums, &both) };
        };
        let mut seen: BTreeSet<usize> = firsts[besides.clone()].iter().copied().collect();
        let new = range.clone().filter(|&layer| seen.insert(firsts[layer]));
        new.map(|layer| of(sums, &(layer..layer + 1))).fold(0, u64::saturating_add)
    }
}

fn of(sums: &[u64], range: &Range<usize>) -> u64 {
    sums[range.end] - sums[range.start]
}

/// `start`, then what `add` makes of it with each layer: `n + 1` values.
pub(super) fn running<T: Copy>(
    layers: &[LayerFacts],
    start: T,
    add: impl Fn(T, &LayerFacts) -> T,
) -> Vec<T> {
    let mut sums = vec![start];
    let mut sum = start;
    for layer in layers {
        sum = add(sum, layer);
        sums.push(sum);
    }
    sums
}

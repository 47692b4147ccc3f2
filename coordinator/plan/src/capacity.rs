//! The wanted number of KV pages and kept sequences, and the search for the largest number that fits.

use super::{Capacity, PlanSettings};

/// How many KV pages there are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wishes {
    /// Fewest pages and kept sequences with which there is a line.
    pub least: u32,
    /// Pages of one sequence of full length: as many of these as memory allows, at any cost in speed.
    pub full: u32,
    /// Pages for all sequences, `full` included: beyond `full` as far as that costs little speed.
    pub all: u32,
}

/// How many KV pages are asked for.
pub(super) fn wishes(settings: &PlanSettings) -> Wishes {
    let pages = |positions: u32| positions.div_ceil(settings.block_positions);
    let within = |positions: u32| pages(positions.min(settings.ctx));
    let (full, least) = (pages(settings.ctx), within(settings.least_ctx));
    let all = within(settings.share_ctx).saturating_mul(settings.max_seqs).max(full);
    Wishes { least, full, all }
}

/// The capacity with `n_blocks` pages and `n_kept` kept sequences.
pub(super) fn capacity(settings: &PlanSettings, n_blocks: u32, n_kept: u32) -> Capacity {
    Capacity { n_blocks, n_slots: settings.max_seqs, n_kept }
}

/// The largest number of `low..=high` that is `good`, where `low` is and a number beyond one that is not is
/// not either.
pub(super) fn largest(mut low: u32, mut high: u32, good: impl Fn(u32) -> bool) -> u32 {
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if good(middle) { low = middle } else { high = middle - 1 }
    }
    low
}

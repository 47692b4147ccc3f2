//! How many KV pages and sequences are asked for, and the search for the largest number that fits.

use super::{Capacity, PlanSettings};

/// KV pages for one sequence of full length, and for all.
pub(super) fn least_and_wished(settings: &PlanSettings) -> (u32, u32) {
    let least = settings.ctx.div_ceil(settings.block_positions);
    (least, least.saturating_mul(settings.max_seqs))
}

/// What `n_blocks` pages and `n_kept` kept sequences come to.
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

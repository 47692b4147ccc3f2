//! The cache that lines are asked into ahead of their use: the first level or the second.
//!
//! Results do not depend on it. Which is quicker depends on the processor: a core waits for few lines at once on behalf of its first
//! level, and for more on behalf of its second, from where they then take another step. With Zen 4 the second is quicker, by up
//! to two times, with Zen 5 the first. So the first chunks of products of few rows ask into either in turn, and what was quicker more
//! often goes from then on. Attention and products of many rows ask into the first.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A level of a core's caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// The first one.
    First,
    /// The one behind it.
    Second,
}

/// Comparisons that decide: odd, so that one of them wins.
const VOTES: u32 = 63;

/// The second cache wins where the first is quicker by less than this part: one row may be bound by memory either way, where
/// several gain.
const SLACK: u64 = 16;

/// Fewest bytes of weights of a chunk whose time tells something.
const LEAST_BYTES: usize = 16 << 10;

thread_local! {
    /// What this thread's lines are asked into.
    static ASKED: Cell<Cache> = const { Cell::new(Cache::First) };
}

/// What this thread's lines are asked into now.
#[inline]
pub fn asked() -> Cache {
    ASKED.get()
}

/// Asks into `cache` on this thread while `work` runs.
pub(crate) fn asking<T>(cache: Cache, work: impl FnOnce() -> T) -> T {
    let before = ASKED.replace(cache);
    let done = work();
    ASKED.set(before);
    done
}

/// The choice of this process, which computes with one table of kernels.
pub(crate) static CHOICE: Choice = Choice::new();

/// The choice between both caches, and the comparisons that lead to it.
#[derive(Debug)]
pub(crate) struct Choice {
    turns: AtomicU32,
    /// The last time of the first cache, for [`PACE_BYTES`], in nanoseconds; 0: none yet.
    pace: AtomicU64,
    first: AtomicU32,
    second: AtomicU32,
}

/// Bytes for which a pace is told.
const PACE_BYTES: u128 = 1 << 20;

impl Choice {
    const fn new() -> Self {
        Self {
            turns: AtomicU32::new(0),
            pace: AtomicU64::new(0),
            first: AtomicU32::new(0),
            second: AtomicU32::new(0),
        }
    }

    /// Computes a chunk of few rows, which reads `bytes` of weights.
    pub(crate) fn run(&self, bytes: usize, compute: impl FnOnce()) {
        if let Some(chosen) = self.chosen() {
            return asking(chosen, compute);
        }
        if bytes < LEAST_BYTES {
            return compute();
        }
        let is_even = self.turns.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        let cache = if is_even { Cache::First } else { Cache::Second };
        let begun = Instant::now();
        asking(cache, compute);
        self.tell(cache, bytes, begun.elapsed());
    }

    /// The cache that won, when all votes are there.
    pub(crate) fn chosen(&self) -> Option<Cache> {
        let [first, second] = [&self.first, &self.second].map(|n| n.load(Ordering::Relaxed));
        let winner = if first > second { Cache::First } else { Cache::Second };
        (first + second >= VOTES).then_some(winner)
    }

    /// Chunks follow each other in a matrix, so each time of the second cache is compared with the last one of the first. Threads
    /// that tell at once may vote more often than is needed; that does no harm.
    fn tell(&self, cache: Cache, bytes: usize, took: Duration) {
        let pace = (took.as_nanos() * PACE_BYTES / bytes as u128) as u64;
        let of_first = self.pace.load(Ordering::Relaxed);
        match cache {
            Cache::First => self.pace.store(pace.max(1), Ordering::Relaxed),
            Cache::Second if of_first == 0 => {}
            Cache::Second => {
                let is_quicker = pace <= of_first + of_first / SLACK;
                let vote = if is_quicker { &self.second } else { &self.first };
                vote.fetch_add(1, Ordering::Relaxed);
                if let Some(cache) = self.chosen() {
                    let first = self.first.load(Ordering::Relaxed);
                    tracing::debug!(
                        ?cache,
                        first,
                        of = VOTES,
                        "weights of few rows are asked into a cache"
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The caches that a choice asked into, and what it came to, where `cost` tells the time of a chunk.
    fn chosen_by(cost: impl Fn(usize, Cache) -> u64) -> Option<Cache> {
        let choice = Choice::new();
        for turn in 0.. {
            if choice.chosen().is_some() {
                break;
            }
            let cache = if turn % 2 == 0 { Cache::First } else { Cache::Second };
            choice.tell(cache, LEAST_BYTES, Duration::from_nanos(cost(turn, cache)));
        }
        choice.chosen()
    }

    #[test]
    fn the_cache_that_was_quicker_more_often_is_chosen() {
        for (quick, slow) in [(Cache::First, Cache::Second), (Cache::Second, Cache::First)] {
            // Every fifth chunk is disturbed, and matrices differ.
            let cost = |turn: usize, cache| {
                let own = if cache == quick { 700 } else { 1000 };
                own * if turn % 5 == 0 { 10 } else { 1 } * (1 + turn as u64 / 40 % 2)
            };
            assert_eq!(chosen_by(cost), Some(quick), "{slow:?} is slower");
        }
        assert_eq!(chosen_by(|_, _| 1000), Some(Cache::Second), "both are as quick");
    }

    #[test]
    fn both_are_asked_in_turn_until_one_is_chosen_and_then_it_alone() {
        let choice = Choice::new();
        let ask = |bytes| {
            let mut cache = None;
            choice.run(bytes, || cache = Some(asked()));
            cache.expect("it was computed")
        };
        assert_eq!(ask(LEAST_BYTES - 1), Cache::First, "too small to tell");
        assert_eq!(
            [(); 4].map(|()| ask(LEAST_BYTES)),
            [Cache::First, Cache::Second, Cache::First, Cache::Second]
        );
        choice.second.store(VOTES, Ordering::Relaxed);
        assert_eq!([1, LEAST_BYTES].map(ask), [Cache::Second; 2]);
        assert_eq!(asked(), Cache::First, "only while it computes");
    }
}

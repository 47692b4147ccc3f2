//! Chunks of work, shared out among threads: each begins with neighbours of its own, and helps others when these are done.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Keeps neighbours off the cache line of a contended value.
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// The chunks that one thread is to begin with, in turn: neighbours in memory are then read by the same
/// thread, which has asked for the next before it begins it. Others help from the end.
struct Share(AtomicU64);

impl Share {
    const fn of(chunks: Range<u32>) -> u64 {
        (chunks.end as u64) << 32 | chunks.start as u64
    }

    fn left(packed: u64) -> Range<u32> {
        packed as u32..(packed >> 32) as u32
    }

    /// Takes the chunk that `pick` parts from those left.
    fn take(&self, pick: impl Fn(Range<u32>) -> (u32, Range<u32>)) -> Option<usize> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let left = Self::left(now);
            if left.is_empty() {
                return None;
            }
            let (chunk, rest) = pick(left);
            let rest = Self::of(rest);
            match self.0.compare_exchange_weak(now, rest, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(chunk as usize),
                Err(other) => now = other,
            }
        }
    }

    fn first(&self) -> Option<usize> {
        self.take(|left| (left.start, left.start + 1..left.end))
    }

    fn last(&self) -> Option<usize> {
        self.take(|left| (left.end - 1, left.start..left.end - 1))
    }
}

/// Chunks of some threads.
pub(crate) struct Shares(Vec<Padded<Share>>);

impl Shares {
    /// No chunks, for so many threads.
    pub(crate) fn of(n_threads: usize) -> Self {
        Self((0..n_threads).map(|_| Padded(Share(AtomicU64::new(0)))).collect())
    }

    /// Deals out chunks `0..n_chunks` instead of those before. With 0 threads find none any more.
    pub(crate) fn fill(&self, n_chunks: usize) {
        let n_threads = self.0.len().min(n_chunks).max(1);
        let bound = |thread: usize| (n_chunks * thread / n_threads) as u32;
        for (thread, share) in self.0.iter().enumerate() {
            let chunks = bound(thread.min(n_threads))..bound((thread + 1).min(n_threads));
            share.0.0.store(Share::of(chunks), Ordering::Relaxed);
        }
    }

    /// A chunk that no thread has had: of this thread's own as long as there are some, then from the end of another's.
    pub(crate) fn next(&self, thread: usize) -> Option<usize> {
        let n_threads = self.0.len();
        let own = self.0[thread].0.first();
        let others = (1..n_threads).map(|i| &self.0[(thread + i) % n_threads].0);
        own.or_else(|| others.into_iter().find_map(Share::last))
    }
}

//! Chunks of work, shared out among threads: each begins with neighbours of its own, and helps others when these are done.
//!
//! Nobody writes the shares when chunks are dealt out. Each follows from the number of chunks, and a share that carries an older
//! round's number is a whole one. Threads look for work near themselves first, and look at groups of threads that are
//! known to have none left only once.

use std::ops::Range;

use super::sync::{AtomicU64, Ordering};

/// Keeps neighbours off the cache line of a contended value.
#[repr(align(128))]
pub(crate) struct Padded<T>(pub(crate) T);

/// Threads that are neighbours: as many as the cores that share a cache on many processors.
pub(crate) const GROUP: usize = 8;

/// Bits of a chunk's number in a share.
const INDEX_BITS: u32 = 24;

/// Most chunks that can be dealt out at once.
pub(crate) const MOST_CHUNKS: usize = (1 << INDEX_BITS) - 1;

/// Rounds after which their numbers begin anew.
const ROUNDS: u64 = u16::MAX as u64;

/// One dealing out of chunks.
#[derive(Clone, Copy)]
pub(crate) struct Deal {
    /// Never 0, which is that of shares nobody has taken from.
    round: u16,
    n_chunks: u32,
}

impl Deal {
    /// Chunks `0..n_chunks`, as the dealing with this number.
    ///
    /// # Panics
    /// With more than [`MOST_CHUNKS`].
    pub(crate) fn new(number: u64, n_chunks: usize) -> Self {
        assert!(n_chunks <= MOST_CHUNKS, "{n_chunks} chunks in one round");
        Self { round: (number % ROUNDS) as u16 + 1, n_chunks: n_chunks as u32 }
    }

    /// Whether shares may carry this round's number from the last time that it was in use.
    pub(crate) fn is_first_round(self) -> bool {
        self.round == 1
    }
}

/// The chunks that one thread is to begin with, in turn: neighbours in memory are then read by the same
/// thread, which has asked for the next before it begins it. Others help from the end.
struct Share(AtomicU64);

/// A chunk that was taken, and those left of its share.
struct Taken {
    chunk: u32,
    left: Range<u32>,
}

impl Share {
    fn of(round: u16, left: Range<u32>) -> u64 {
        u64::from(round) << (2 * INDEX_BITS)
            | u64::from(left.end) << INDEX_BITS
            | u64::from(left.start)
    }

    /// What is left in the round; `None`: nobody has taken of it.
    fn left(packed: u64, round: u16) -> Option<Range<u32>> {
        let index = |bits: u64| (bits & MOST_CHUNKS as u64) as u32;
        let is_begun = packed >> (2 * INDEX_BITS) == u64::from(round);
        is_begun.then(|| index(packed)..index(packed >> INDEX_BITS))
    }

    /// Takes the chunk that `pick` parts from those left; `whole` are those before anybody has taken one.
    fn take(
        &self,
        round: u16,
        whole: impl Fn() -> Range<u32>,
        pick: impl Fn(Range<u32>) -> Taken,
    ) -> Option<usize> {
        let mut now = self.0.load(Ordering::Relaxed);
        loop {
            let left = Self::left(now, round).unwrap_or_else(&whole);
            if left.is_empty() {
                return None;
            }
            let taken = pick(left);
            let rest = Self::of(round, taken.left);
            match self.0.compare_exchange_weak(now, rest, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Some(taken.chunk as usize),
                Err(other) => now = other,
            }
        }
    }
}

fn first(left: Range<u32>) -> Taken {
    Taken { chunk: left.start, left: left.start + 1..left.end }
}

fn last(left: Range<u32>) -> Taken {
    Taken { chunk: left.end - 1, left: left.start..left.end - 1 }
}

/// Chunks of some threads.
pub(crate) struct Shares {
    shares: Vec<Padded<Share>>,
    /// The round in which each group was last seen to have no chunks left.
    empty: Vec<Padded<AtomicU64>>,
}

impl Shares {
    /// Those of so many threads.
    pub(crate) fn of(n_threads: usize) -> Self {
        let zero = || Padded(AtomicU64::new(0));
        Self {
            shares: (0..n_threads).map(|_| Padded(Share(AtomicU64::new(0)))).collect(),
            empty: (0..n_threads.div_ceil(GROUP)).map(|_| zero()).collect(),
        }
    }

    /// Forgets all rounds. Nobody may take chunks meanwhile.
    pub(crate) fn forget(&self) {
        let words = self.shares.iter().map(|share| &share.0.0);
        let words = words.chain(self.empty.iter().map(|empty| &empty.0));
        words.for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Leaves no chunks of this dealing. Those that threads have taken are theirs.
    pub(crate) fn abandon(&self, deal: Deal) {
        let none = Share::of(deal.round, 0..0);
        self.shares.iter().for_each(|share| share.0.0.store(none, Ordering::Relaxed));
    }

    /// Begins to take chunks of this dealing as this thread. Several of one thread are not wrong.
    pub(crate) fn claims(&self, deal: Deal, thread: usize) -> Claims<'_> {
        let n_dealt = self.shares.len().min(deal.n_chunks as usize).max(1);
        Claims {
            shares: self,
            deal,
            thread,
            n_dealt,
            own_is_done: false,
            n_groups: 0,
            n_members: 0,
        }
    }
}

/// The search of a thread for chunks. What it found empty stays so, and is not looked at again.
pub(crate) struct Claims<'a> {
    shares: &'a Shares,
    deal: Deal,
    thread: usize,
    /// Threads that have a share.
    n_dealt: usize,
    own_is_done: bool,
    /// Groups that were searched.
    n_groups: usize,
    /// Members of the next group that were searched.
    n_members: usize,
}

impl Claims<'_> {
    /// A chunk that no thread has had: of this thread's own as long as there are some, then from the end of another's.
    pub(crate) fn next(&mut self) -> Option<usize> {
        if !self.own_is_done {
            let own = self.take(self.thread, first);
            self.own_is_done = own.is_none();
            if own.is_some() {
                return own;
            }
        }
        let groups = self.n_dealt.div_ceil(GROUP);
        while self.n_groups < groups {
            let group = (self.thread / GROUP + self.n_groups) % groups;
            let found = self.of_group(group, groups > 1);
            if found.is_some() {
                return found;
            }
            (self.n_groups, self.n_members) = (self.n_groups + 1, 0);
        }
        None
    }

    /// The same of a group. `is_noted`: groups without chunks are noted for others.
    fn of_group(&mut self, group: usize, is_noted: bool) -> Option<usize> {
        let (empty, round) = (&self.shares.empty[group].0, u64::from(self.deal.round));
        if is_noted && self.n_members == 0 && empty.load(Ordering::Relaxed) == round {
            return None;
        }
        while self.n_members < GROUP {
            // Begins with another member than its neighbours do.
            let member = group * GROUP + (self.thread + self.n_members) % GROUP;
            let found = if member < self.n_dealt { self.take(member, last) } else { None };
            if found.is_some() {
                return found;
            }
            self.n_members += 1;
        }
        if is_noted && empty.load(Ordering::Relaxed) != round {
            empty.store(round, Ordering::Relaxed);
        }
        None
    }

    fn take(&self, thread: usize, pick: impl Fn(Range<u32>) -> Taken) -> Option<usize> {
        self.shares.shares[thread].0.take(self.deal.round, || self.whole(thread), pick)
    }

    /// All chunks of a thread.
    fn whole(&self, thread: usize) -> Range<u32> {
        let bound = |thread: usize| {
            let thread = thread.min(self.n_dealt) as u64;
            (u64::from(self.deal.n_chunks) * thread / self.n_dealt as u64) as u32
        };
        bound(thread)..bound(thread + 1)
    }
}

//! A pass that computes nothing, to learn which kernels it would run: [`Gpu::rehearse`](crate::Gpu::rehearse).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, ThreadId};

use super::dispatch::{Fusion, Work};
use crate::commands::Order;
use crate::lock::lock;
use crate::pipelines::Wanted;

/// The thread that rehearses, if any, and what it would have run. Other threads compute meanwhile.
#[derive(Default)]
pub(crate) struct Rehearsal {
    /// Whether some thread does: all ask this first.
    is_on: AtomicBool,
    of: Mutex<Option<Noted>>,
    /// One thread at a time: a second one waits for the first.
    turns: Mutex<()>,
}

/// Runs that a thread noted instead of making them.
struct Noted {
    thread: ThreadId,
    found: HashSet<Wanted>,
    /// The last run, where the next one may join it.
    last: Option<Work>,
}

impl Rehearsal {
    /// Whether this thread rehearses.
    pub(crate) fn is_mine(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
            && lock(&self.of).as_ref().is_some_and(|noted| noted.thread == thread::current().id())
    }

    /// Notes what this thread, which rehearses, would run: this, and where it joins the last one, both in one.
    pub(crate) fn notes(
        &self,
        order: Order,
        work: &Work,
        joined: impl FnOnce(&Work) -> Option<Fusion>,
    ) {
        let mut of = lock(&self.of);
        let Some(noted) = of.as_mut() else { return };
        // Where a batch ends between the two they are not joined: all are needed.
        noted.found.insert(work.wanted);
        noted.last = match noted.last.as_ref().and_then(joined) {
            Some(Fusion::Fused(both)) => {
                noted.found.insert(both.wanted);
                Some(both)
            }
            Some(Fusion::Concurrent) => None,
            None => (order == Order::After).then_some(*work),
        };
    }
}

impl Rehearsal {
    /// Begins one on this thread, once others are over.
    pub(crate) fn begin(&self) -> Begun<'_> {
        let turn = lock(&self.turns);
        let thread = thread::current().id();
        *lock(&self.of) = Some(Noted { thread, found: HashSet::new(), last: None });
        self.is_on.store(true, Ordering::Release);
        Begun { rehearsal: self, _turn: turn }
    }
}

/// A rehearsal that goes on until this is dropped, also where its pass panics.
pub(crate) struct Begun<'a> {
    rehearsal: &'a Rehearsal,
    _turn: MutexGuard<'a, ()>,
}

impl Begun<'_> {
    /// Ends it: what the pass would have run.
    pub(crate) fn end(self) -> HashSet<Wanted> {
        lock(&self.rehearsal.of).take().map_or_else(HashSet::new, |noted| noted.found)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.rehearsal.is_on.store(false, Ordering::Release);
        *lock(&self.rehearsal.of) = None;
    }
}

//! A pass that computes nothing, to learn which kernels it would run: [`Gpu::rehearse`](crate::Gpu::rehearse).

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, ThreadId};

use crate::lock::lock;
use crate::pipelines::Wanted;

/// Which thread rehearses, if any, and what it would have run. Other threads compute meanwhile.
#[derive(Default)]
pub(crate) struct Rehearsal {
    /// Whether some thread does: all ask this first.
    is_on: AtomicBool,
    of: Mutex<Option<(ThreadId, HashSet<Wanted>)>>,
    /// One thread at a time: a second one waits for the first.
    turns: Mutex<()>,
}

impl Rehearsal {
    /// Whether this thread rehearses.
    pub(crate) fn is_mine(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
            && lock(&self.of).as_ref().is_some_and(|(of, _)| *of == thread::current().id())
    }

    /// Whether this thread rehearses; then what it would run is noted.
    pub(crate) fn notes(&self, wanted: impl FnOnce() -> Wanted) -> bool {
        if !self.is_on.load(Ordering::Acquire) {
            return false;
        }
        match &mut *lock(&self.of) {
            Some((of, found)) if *of == thread::current().id() => {
                found.insert(wanted());
                true
            }
            _ => false,
        }
    }
}

impl Rehearsal {
    /// Begins one on this thread, once others are over.
    pub(crate) fn begin(&self) -> Begun<'_> {
        let turn = lock(&self.turns);
        *lock(&self.of) = Some((thread::current().id(), HashSet::new()));
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
        lock(&self.rehearsal.of).take().map_or_else(HashSet::new, |(_, found)| found)
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.rehearsal.is_on.store(false, Ordering::Release);
        *lock(&self.rehearsal.of) = None;
    }
}

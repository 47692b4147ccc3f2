//! The end of a connection from outside: a flag that its reader sees at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Waker};

/// Ends a connection, also while it waits.
#[derive(Debug, Default)]
pub(crate) struct Hangup {
    closing: AtomicBool,
    reader: Mutex<Option<Waker>>,
}

impl Hangup {
    /// Ends it: reading it is an error from now on.
    pub(crate) fn now(&self) {
        self.closing.store(true, Ordering::Release);
        if let Some(reader) = self.reader.lock().unwrap_or_else(PoisonError::into_inner).take() {
            reader.wake();
        }
    }

    /// Whether it has ended.
    pub(crate) fn is_made(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Wakes the task of `cx` at the end.
    pub(crate) fn wake(&self, cx: &Context<'_>) {
        let mut reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        // Nearly always the task that waited before.
        if !reader.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *reader = Some(cx.waker().clone());
        }
    }
}

//! Atomics that are those of the standard library, and count what they do to cache lines or delay their threads.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{self as real, AtomicU8};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

pub(crate) use real::{Ordering, fence};

use super::shares::Padded;
use crate::Rng;

/// What the atomics do beside their work.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum Mode {
    Plain,
    Counts,
    Delays,
}

static MODE: AtomicU8 = AtomicU8::new(Mode::Plain as u8);

/// Ends a mode.
pub(crate) struct Begun;

impl Mode {
    /// Begins it, until the result is dropped.
    pub(crate) fn begin(self) -> Begun {
        MODE.store(self as u8, Ordering::SeqCst);
        Begun
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        MODE.store(Mode::Plain as u8, Ordering::SeqCst);
    }
}

/// A cache line, as caches see it.
#[derive(Default)]
struct Line {
    /// Threads that have it.
    held: HashSet<ThreadId>,
    writes: usize,
    fetches: usize,
}

/// Lines by their number.
static LINES: Mutex<Option<HashMap<usize, Line>>> = Mutex::new(None);

/// Counts of all lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines {
    /// Writes of the line that is written most.
    pub(crate) busiest: usize,
    /// How often a thread had to fetch a line.
    pub(crate) fetched: usize,
}

/// Begins to count anew, with the lines where they are.
pub(crate) fn forget_counts() {
    let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
    for line in lines.get_or_insert_default().values_mut() {
        (line.writes, line.fetches) = (0, 0);
    }
}

/// What was counted. Nothing is known of any line afterwards.
pub(crate) fn lines() -> Lines {
    let lines = LINES.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
    Lines {
        busiest: lines.values().map(|line| line.writes).max().unwrap_or(0),
        fetched: lines.values().map(|line| line.fetches).sum(),
    }
}

/// Whether an operation writes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
}

fn seen<T>(address: usize, kind: Kind, operation: impl FnOnce() -> T) -> T {
    match MODE.load(Ordering::Relaxed) {
        mode if mode == Mode::Counts as u8 => {
            let mut lines = LINES.lock().unwrap_or_else(PoisonError::into_inner);
            let line = address / align_of::<Padded<u8>>();
            let line = lines.get_or_insert_default().entry(line).or_default();
            let result = operation();
            let me = thread::current().id();
            let has = line.held.contains(&me);
            if kind == Kind::Write {
                line.writes += 1;
                line.fetches += usize::from(!has || line.held.len() > 1);
                line.held.clear();
            } else {
                line.fetches += usize::from(!has);
            }
            line.held.insert(me);
            result
        }
        mode if mode == Mode::Delays as u8 => {
            delay(address);
            let result = operation();
            delay(address);
            result
        }
        _ => operation(),
    }
}

/// Sometimes lets others go first.
fn delay(seed: usize) {
    thread_local! {
        static STATE: Cell<u64> = const { Cell::new(0) };
    }
    let drawn = STATE.with(|state| {
        let mut rng = Rng::new(state.get().wrapping_add(seed as u64));
        let drawn = rng.bits();
        state.set(drawn);
        drawn >> 40
    });
    match drawn % 256 {
        0..=7 => thread::yield_now(),
        8 => thread::sleep(Duration::from_micros(drawn % 50)),
        9..=15 => (0..drawn % 1000).for_each(|_| std::hint::spin_loop()),
        _ => {}
    }
}

/// An atomic with the operations that the pool has, of these types.
macro_rules! atomic {
    ($name:ident, $value:ty) => {
        pub(crate) struct $name(real::$name);

        impl $name {
            pub(crate) const fn new(value: $value) -> Self {
                Self(real::$name::new(value))
            }

            fn does<T>(&self, kind: Kind, operation: impl FnOnce(&real::$name) -> T) -> T {
                seen(std::ptr::from_ref(self).addr(), kind, || operation(&self.0))
            }

            pub(crate) fn load(&self, order: Ordering) -> $value {
                self.does(Kind::Read, |atomic| atomic.load(order))
            }

            pub(crate) fn store(&self, value: $value, order: Ordering) {
                self.does(Kind::Write, |atomic| atomic.store(value, order));
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU64, u64);

impl AtomicU64 {
    pub(crate) fn fetch_and(&self, value: u64, order: Ordering) -> u64 {
        self.does(Kind::Write, |atomic| atomic.fetch_and(value, order))
    }

    pub(crate) fn fetch_sub(&self, value: u64, order: Ordering) -> u64 {
        self.does(Kind::Write, |atomic| atomic.fetch_sub(value, order))
    }

    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) -> u64 {
        self.does(Kind::Write, |atomic| atomic.fetch_or(value, order))
    }

    pub(crate) fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.does(Kind::Write, |atomic| {
            atomic.compare_exchange_weak(current, new, success, failure)
        })
    }
}

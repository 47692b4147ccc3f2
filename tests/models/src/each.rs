//! Checks of many alike items, on all cores.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Runs `check` of every item, as many at once as there are cores.
///
/// # Panics
/// If one does, behind those that have begun.
pub fn each<T: Sync>(items: &[T], check: impl Fn(&T) + Sync) {
    let n_threads = thread::available_parallelism().map_or(1, NonZero::get).min(items.len());
    let next = AtomicUsize::new(0);
    let run = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            check(item);
        }
    };
    thread::scope(|scope| {
        for _ in 0..n_threads {
            scope.spawn(run);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_is_checked_once_and_a_panic_is_passed_on() {
        let counts: Vec<AtomicUsize> = (0..100).map(|_| AtomicUsize::new(0)).collect();
        each(&counts, |count| _ = count.fetch_add(1, Ordering::Relaxed));
        assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        let fails = || each(&[1, 2, 3], |i| assert_ne!(*i, 2));
        assert!(std::panic::catch_unwind(fails).is_err());
    }
}

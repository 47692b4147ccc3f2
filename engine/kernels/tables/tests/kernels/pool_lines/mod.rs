//! The pool over atomics that count and delay: what a region of many threads does to each other's cache lines, and random
//! histories.
//!
//! The sources are those of the crate, with other atomics in their place ([`sync`]). Counting follows which threads have a
//! line, as caches do: a write takes it from all others, and who has not got it fetches it. So the counts say what a region
//! costs on a machine with so many cores, whatever machine counts them.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use self::pool::Pool;
use self::sync::{Lines, Mode};
use crate::Rng;

#[expect(dead_code, reason = "a part of it is for callers that these tests have not")]
#[path = "../../../../src/pool.rs"]
mod pool;
#[path = "../../../../src/shares.rs"]
mod shares;
mod sync;

/// Nothing is pinned here.
mod pinning {
    pub(crate) fn pin_current(_cpu: usize) -> bool {
        false
    }
}

/// The atomics have one mode at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// Regions that are counted together.
const REGIONS: usize = 5;

/// Writes of a group's line: its threads count themselves in and out.
const OF_GROUP: usize = 2 * shares::GROUP;

/// A region in which every thread has chunks of its own and waits in the first one until all have come. So all take part,
/// however few cores there are.
fn region_of_all(pool: &Pool, n_chunks: usize) {
    let threads = pool.threads();
    let begun: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
    let met = AtomicUsize::new(0);
    pool.run(n_chunks, &|_, thread| {
        if begun[thread].fetch_add(1, Ordering::SeqCst) == 0 {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < threads {
                thread::yield_now();
            }
        }
    });
}

/// What a region of all threads does to lines.
fn lines_of(threads: usize, n_chunks: usize) -> Lines {
    let pool = Pool::new(threads, None).expect("threads start");
    region_of_all(&pool, n_chunks);
    let mode = Mode::Counts.begin();
    // The caches are cold at first.
    region_of_all(&pool, n_chunks);
    sync::forget_counts();
    (0..REGIONS).for_each(|_| region_of_all(&pool, n_chunks));
    drop(mode);
    sync::lines()
}

#[test]
fn no_line_is_written_by_all_threads() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for threads in [2, 8, 32, 64] {
        let lines = lines_of(threads, threads);
        let each = |n: usize| n as f64 / REGIONS as f64;
        println!(
            "{threads} threads: the busiest line is written {} times a region, and lines are fetched {} times",
            each(lines.busiest),
            each(lines.fetched)
        );
        // A thread that parks or looks again at a closed region writes once more.
        assert!(lines.busiest <= 2 * REGIONS * OF_GROUP, "{threads} threads: {lines:?}");
        // Each thread fetches the region, its group's lines for each of its neighbours, and a line of each other group.
        let groups = threads.div_ceil(shares::GROUP);
        let most = threads * (4 + 2 * OF_GROUP + 2 * groups);
        assert!(lines.fetched <= REGIONS * most, "{threads} threads, at most {most}: {lines:?}");
    }
}

#[test]
fn chunks_run_once_in_random_histories() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _mode = Mode::Delays.begin();
    let mut rng = Rng::new(9);
    let mut below = move |n: usize| (rng.bits() >> 33) as usize % n.max(1);
    for _ in 0..8 {
        let threads = [2, 3, 5, 8, 9, 12, 17, 33][below(8)];
        let pool = Pool::new(threads, None).expect("threads start");
        for _ in 0..30 {
            let most = [4, 20, 2 * threads, 300][below(4)];
            let n_chunks = below(most);
            let bad = if below(20) == 0 { Some(below(n_chunks)) } else { None };
            let ran: Vec<AtomicU32> = (0..n_chunks).map(|_| AtomicU32::new(0)).collect();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(n_chunks, &|chunk, thread| {
                    assert!(thread < threads, "thread {thread} of {threads}");
                    ran[chunk].fetch_add(1, Ordering::Relaxed);
                    if bad == Some(chunk) {
                        resume_unwind(Box::new("bad chunk"));
                    }
                });
            }));
            let ran: Vec<u32> = ran.into_iter().map(AtomicU32::into_inner).collect();
            if bad.is_some_and(|bad| bad < n_chunks) {
                assert!(outcome.is_err() && ran.iter().all(|n| *n <= 1), "{threads}: {ran:?}");
            } else {
                assert!(outcome.is_ok() && ran.iter().all(|n| *n == 1), "{threads}: {ran:?}");
            }
            if below(10) == 0 {
                // Threads park, and are woken by their neighbours.
                thread::sleep(Duration::from_micros(300));
            }
        }
    }
}

#[test]
fn parked_threads_of_all_groups_are_woken() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = Pool::new(20, None).expect("threads start");
    for _ in 0..5 {
        thread::sleep(Duration::from_millis(5));
        // Does not end unless all come.
        region_of_all(&pool, 20);
    }
}

#[test]
fn rounds_begin_anew() {
    let shares = shares::Shares::of(3);
    let rounds = [1, 2, 65_533, 65_534, 65_535, 65_536, 131_070];
    for (i, number) in rounds.into_iter().enumerate() {
        let n_chunks = 5 + i % 3;
        let deal = shares::Deal::new(number, n_chunks);
        if deal.is_first_round() {
            shares.forget();
        }
        let mut claims = shares.claims(deal, i % 3);
        let mut found: Vec<usize> = std::iter::from_fn(|| claims.next()).collect();
        found.sort_unstable();
        assert_eq!(found, (0..n_chunks).collect::<Vec<_>>(), "round {number}");
        assert_eq!(shares.claims(deal, 1).next(), None);
    }
}

#[test]
fn every_share_is_found_from_every_thread() {
    for (threads, n_chunks) in [(1, 3), (8, 3), (9, 40), (20, 7), (64, 1000)] {
        for thread in [0, threads / 2, threads - 1] {
            let shares = shares::Shares::of(threads);
            let deal = shares::Deal::new(4, n_chunks);
            let mut claims = shares.claims(deal, thread);
            let mut found: Vec<usize> = std::iter::from_fn(|| claims.next()).collect();
            found.sort_unstable();
            assert_eq!(found, (0..n_chunks).collect::<Vec<_>>(), "{thread} of {threads}");
        }
    }
}

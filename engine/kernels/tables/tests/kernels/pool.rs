//! Threads that run chunks: each once, wherever it panics or begins others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use brigade_kernels::Pool;

#[test]
fn every_chunk_runs_exactly_once() {
    for threads in [1, 2, 3, 8] {
        let pool = Pool::new(threads, None).expect("threads start");
        for n_chunks in [0, 1, 2, 7, 100] {
            let counts: Vec<AtomicUsize> = (0..n_chunks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(n_chunks, &|chunk, thread| {
                assert!(thread < threads);
                counts[chunk].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1), "{threads} {n_chunks}");
        }
    }
}

/// More than there are numbers of rounds: they begin anew.
const N_REGIONS: usize = 70_000;

#[test]
fn many_regions_in_a_row_lose_nothing() {
    let pool = Pool::new(4, None).expect("threads start");
    let total = AtomicUsize::new(0);
    for round in 0..N_REGIONS {
        pool.run(1 + round % 5, &|chunk, _| {
            total.fetch_add(chunk + 1, Ordering::Relaxed);
        });
    }
    let expected: usize = (0..N_REGIONS).map(|r| (1..=1 + r % 5).sum::<usize>()).sum();
    assert_eq!(total.into_inner(), expected);
}

#[test]
fn parked_workers_wake_up() {
    let pool = Pool::new(2, None).expect("threads start");
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(20));
        let met = AtomicUsize::new(0);
        // Both chunks wait for each other, so two threads must be there.
        pool.run(2, &|_, _| {
            met.fetch_add(1, Ordering::SeqCst);
            while met.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
        });
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_lives_on() {
    for threads in [1, 3] {
        let pool = Pool::new(threads, None).expect("threads start");
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(16, &|chunk, _| assert!(chunk != 5, "chunk five"));
        }));
        let payload = caught.expect_err("the panic is passed on");
        let text = payload.downcast_ref::<&str>().copied().unwrap_or_default();
        assert!(text.contains("chunk five"), "{text}");
        let ran = AtomicUsize::new(0);
        pool.run(8, &|_, _| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 8);
    }
}

#[test]
fn a_nested_region_runs_inline() {
    let pool = Pool::new(2, None).expect("threads start");
    let ran = AtomicUsize::new(0);
    pool.run(4, &|_, _| {
        pool.run(3, &|_, _| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(ran.into_inner(), 12);
}

//! A fork-join pool of persistent threads, made for token generation. Starting and ending a parallel region
//! costs about a microsecond. Between regions, threads spin for a bounded while and then park.
//!
//! - Every chunk of a region runs exactly once, and [`Pool::run`] returns after the last one.
//! - A panic in a chunk reaches the caller.
//! - A thread that the system has not scheduled in time is not waited for: the others compute its share.
//!
//! The pool knows nothing of what the chunks compute. Results never depend on which thread claims which
//! chunk.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use crate::shares::{Padded, Shares};

/// Most threads a pool may have.
pub const MAX_THREADS: usize = 256;
/// Turns an idle worker spins before it parks: some 50 to 100 microseconds, the gaps of a decode step.
const WORKER_SPINS: u32 = 4_000;
/// Turns the caller spins for workers still inside their last chunk before it gives way.
const CALLER_SPINS: u32 = 4_000;
/// Times the caller yields before it sleeps between looks.
const CALLER_YIELDS: u32 = 64;
/// Sleep between looks once a worker has lost its core to something else.
const CALLER_NAP: Duration = Duration::from_micros(50);

/// The work of one region: `chunk`, `thread`.
type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// The region in progress. `task` points into the caller's stack, which stays until the region closes.
#[derive(Clone, Copy)]
struct Region {
    task: *const Task<'static>,
}

/// Set in [`Shared::state`] while workers may enter; below it the number inside, above it the epoch.
const OPEN: u64 = 1 << 31;
const ACTIVE_MASK: u64 = OPEN - 1;
const EPOCH_ONE: u64 = 1 << 32;

struct Shared {
    state: Padded<AtomicU64>,
    shares: Shares,
    region: UnsafeCell<Region>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    parked: Vec<Padded<AtomicBool>>,
    stop: AtomicBool,
}

// SAFETY: `region` is written only by the holder of `Pool::caller` while the state is closed and
// nobody is inside, and read only by threads that entered while it was open (see `enter`).
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `region` is only followed under the rule above.
unsafe impl Send for Shared {}

/// A fork-join pool; the calling thread takes part as thread 0.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    handles: Vec<Thread>,
    caller: Mutex<()>,
    cpus: Option<Vec<usize>>,
}

thread_local! {
    /// Whether this thread is inside a region: a nested region runs inline.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// Starts `threads - 1` workers (`threads` is clamped to `1..=MAX_THREADS`). With `cpus`, thread
    /// `i` is pinned to `cpus[i % len]`; the calling thread only by [`Pool::pin_caller`].
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn new(threads: usize, cpus: Option<&[usize]>) -> std::io::Result<Self> {
        let n_workers = threads.clamp(1, MAX_THREADS) - 1;
        let cpus = cpus.filter(|c| !c.is_empty()).map(<[usize]>::to_vec);
        let idle: *const Task<'static> = &|_: usize, _: usize| {};
        let shared = Arc::new(Shared {
            state: Padded(AtomicU64::new(0)),
            shares: Shares::of(n_workers + 1),
            region: UnsafeCell::new(Region { task: idle }),
            panic: Mutex::new(None),
            parked: (0..n_workers).map(|_| Padded(AtomicBool::new(false))).collect(),
            stop: AtomicBool::new(false),
        });
        let mut pool =
            Self { shared, workers: Vec::new(), handles: Vec::new(), caller: Mutex::new(()), cpus };
        for index in 1..=n_workers {
            let shared = Arc::clone(&pool.shared);
            let cpu = pool.cpu_of(index);
            let worker = thread::Builder::new()
                .name(format!("compute-{index}"))
                .spawn(move || worker_loop(&shared, index, cpu))?;
            pool.handles.push(worker.thread().clone());
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads that take part, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Pins the calling thread to the first CPU of the list given to [`Pool::new`], if any.
    /// Returns whether the thread is now pinned.
    pub fn pin_caller(&self) -> bool {
        self.cpu_of(0).is_some_and(pin_current)
    }

    fn cpu_of(&self, thread: usize) -> Option<usize> {
        self.cpus.as_ref().map(|cpus| cpus[thread % cpus.len()])
    }

    /// Runs `task(chunk, thread)` for every chunk in `0..n_chunks` and returns when all are done.
    /// A region inside a region runs on its own thread alone.
    ///
    /// # Panics
    /// With the payload of the first chunk that panicked; chunks not yet begun are then skipped.
    pub fn run(&self, n_chunks: usize, task: &Task<'_>) {
        assert!(n_chunks <= u32::MAX as usize, "{n_chunks} chunks in one region");
        if self.workers.is_empty() || n_chunks <= 1 || INSIDE.get() {
            for chunk in 0..n_chunks {
                task(chunk, 0);
            }
            return;
        }
        let _only_caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
        self.open(n_chunks, task);
        INSIDE.set(true);
        work(&self.shared, Region { task: erase(task) }, 0);
        INSIDE.set(false);
        self.close();
        let panicked = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }

    /// Publishes the region and wakes as many parked workers as there are chunks for.
    fn open(&self, n_chunks: usize, task: &Task<'_>) {
        let shared = &*self.shared;
        // SAFETY: the state is closed and nobody is inside (`close` waited for that), and we hold
        // `caller`, so no other thread reads or writes the region now.
        unsafe { *shared.region.get() = Region { task: erase(task) } };
        shared.shares.fill(n_chunks);
        let epoch =
            (shared.state.0.load(Ordering::Relaxed) & !ACTIVE_MASK & !OPEN).wrapping_add(EPOCH_ONE);
        shared.state.0.store(epoch | OPEN, Ordering::Release);
        // Pairs with the fence in `park_until_open`: either we see the flag or it sees the state.
        fence(Ordering::SeqCst);
        for (parked, handle) in shared.parked.iter().zip(&self.handles).take(n_chunks - 1) {
            if parked.0.load(Ordering::Relaxed) && parked.0.swap(false, Ordering::Relaxed) {
                handle.unpark();
            }
        }
    }

    /// Lets no thread enter any more, and waits for those inside.
    fn close(&self) {
        let state = &self.shared.state.0;
        let mut turns = 0u32;
        let mut now = state.fetch_and(!OPEN, Ordering::AcqRel) & !OPEN;
        while now & ACTIVE_MASK != 0 {
            turns = turns.saturating_add(1);
            if turns < CALLER_SPINS {
                std::hint::spin_loop();
            } else if turns < CALLER_SPINS + CALLER_YIELDS {
                thread::yield_now();
            } else {
                thread::sleep(CALLER_NAP);
            }
            now = state.load(Ordering::Acquire);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        for handle in &self.handles {
            handle.unpark();
        }
        for worker in self.workers.drain(..) {
            // A worker catches its chunks' panics, so a join error concerns no caller.
            drop(worker.join());
        }
    }
}

/// Forgets the task's lifetime; `Pool::run` keeps it alive until the region is closed.
fn erase(task: &Task<'_>) -> *const Task<'static> {
    let task: *const Task<'_> = task;
    // SAFETY: only the lifetime bound of the trait object changes, its layout does not.
    unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) }
}

/// Claims and runs chunks until none is left. Panics are kept for the caller.
fn work(shared: &Shared, region: Region, thread: usize) {
    // SAFETY: the caller of `Pool::run` keeps the task alive until the region is closed and nobody
    // is inside; this thread is inside (or is that caller).
    let task = unsafe { &*region.task };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        while let Some(chunk) = shared.shares.next(thread) {
            task(chunk, thread);
        }
    }));
    if let Err(payload) = outcome {
        shared.shares.fill(0);
        shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
    }
}

fn worker_loop(shared: &Shared, index: usize, cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        // Pinning is a wish: without it the thread runs all the same.
        pin_current(cpu);
    }
    INSIDE.set(true);
    let mut seen = 0u64;
    while !shared.stop.load(Ordering::Acquire) {
        match wait(shared, seen) {
            Some(epoch) => seen = epoch,
            None => {
                park_until_open(shared, index, seen);
                continue;
            }
        }
        if enter(shared, seen) {
            // SAFETY: entered while open, so the region was published before (Acquire in `enter`)
            // and is not written again until this thread has left.
            let region = unsafe { *shared.region.get() };
            work(shared, region, index);
            shared.state.0.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Whether the state offers an epoch that this worker has not served.
fn offered(state: u64, seen: u64) -> Option<u64> {
    let epoch = state >> 32;
    (state & OPEN != 0 && epoch != seen).then_some(epoch)
}

/// Spins a bounded while for a new epoch.
fn wait(shared: &Shared, seen: u64) -> Option<u64> {
    for _ in 0..WORKER_SPINS {
        if let Some(epoch) = offered(shared.state.0.load(Ordering::Acquire), seen) {
            return Some(epoch);
        }
        std::hint::spin_loop();
    }
    None
}

fn park_until_open(shared: &Shared, index: usize, seen: u64) {
    let parked = &shared.parked[index - 1].0;
    parked.store(true, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let idle = offered(shared.state.0.load(Ordering::Relaxed), seen).is_none();
    if idle && !shared.stop.load(Ordering::Relaxed) {
        thread::park();
    }
    parked.store(false, Ordering::Relaxed);
}

/// Counts this thread in if `epoch` is still open.
fn enter(shared: &Shared, epoch: u64) -> bool {
    let state = &shared.state.0;
    let mut now = state.load(Ordering::Relaxed);
    while now & OPEN != 0 && now >> 32 == epoch {
        match state.compare_exchange_weak(now, now + 1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
    false
}

fn pin_current(cpu: usize) -> bool {
    core_affinity::set_for_current(core_affinity::CoreId { id: cpu })
}

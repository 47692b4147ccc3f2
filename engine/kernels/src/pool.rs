//! A fork-join pool of persistent threads, made for token generation. Starting and ending a parallel region
//! costs about a microsecond. Between regions, threads spin for a bounded while and then park.
//!
//! - Every chunk of a region runs exactly once, and [`Pool::run`] returns after the last one.
//! - A panic in a chunk reaches the caller.
//! - A thread that the system has not scheduled in time is not waited for: the others compute its share.
//!
//! With many threads a region costs what they do to each other's cache lines. So threads are counted in and out in groups of
//! neighbours, each on a line of its own. Regions with few chunks concern few groups.
//!
//! The pool knows nothing of what the chunks compute. Results never depend on which thread claims which
//! chunk.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::Duration;

use super::pinning::pin_current;
use super::shares::{Deal, GROUP, MOST_CHUNKS, Padded, Shares};
use super::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Most threads a pool may have.
pub const MAX_THREADS: usize = 1024;
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
    deal: Deal,
}

/// Set in a group's state while its workers may enter; below it the number inside, above it that of the region.
const OPEN: u64 = 1 << 31;
const ACTIVE_MASK: u64 = OPEN - 1;
const NUMBER_AT: u32 = 32;

/// Threads that are neighbours.
struct Group {
    /// [`OPEN`], the members inside, and the number of the region. The caller is not counted.
    state: Padded<AtomicU64>,
    /// A bit for each member that is parked, or about to be.
    parked: Padded<AtomicU64>,
}

struct Shared {
    region: Padded<UnsafeCell<Region>>,
    groups: Vec<Group>,
    shares: Shares,
    /// Handles of the threads; none of the caller. A thread sets its own before it parks.
    threads: Vec<OnceLock<Thread>>,
    stop: AtomicBool,
    /// On a line of its own: the caller looks at it after every region.
    panic: Padded<Mutex<Option<Box<dyn Any + Send>>>>,
}

// SAFETY: `region` is written only by the holder of `Pool::n_regions` while all groups are closed and nobody is
// inside (see `Pool::close`), and read only by threads that entered while their group was open (see `enter`).
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `region` is only followed under the rule above.
unsafe impl Send for Shared {}

/// A fork-join pool; the calling thread takes part as thread 0.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// The number of regions so far. Its holder is the only caller.
    n_regions: Mutex<u64>,
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
        let n_threads = threads.clamp(1, MAX_THREADS);
        let cpus = cpus.filter(|c| !c.is_empty()).map(<[usize]>::to_vec);
        let shared = Arc::new(Shared::new(n_threads));
        let mut pool = Self { shared, workers: Vec::new(), n_regions: Mutex::new(0), cpus };
        for index in 1..n_threads {
            let shared = Arc::clone(&pool.shared);
            let cpu = pool.cpu_of(index);
            let worker = thread::Builder::new()
                .name(format!("compute-{index}"))
                .spawn(move || worker_loop(&shared, index, cpu))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads that take part, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Whether there are several threads, each on a CPU that was given to [`Pool::new`].
    pub fn has_places(&self) -> bool {
        self.cpus.is_some() && self.threads() > 1
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
        if self.workers.is_empty() || n_chunks <= 1 || INSIDE.get() {
            for chunk in 0..n_chunks {
                task(chunk, 0);
            }
            return;
        }
        if n_chunks > MOST_CHUNKS {
            return self.run_together(n_chunks, task);
        }
        let mut n_regions = self.n_regions.lock().unwrap_or_else(PoisonError::into_inner);
        *n_regions += 1;
        let region = Region { task: erase(task), deal: Deal::new(*n_regions, n_chunks) };
        // Threads with a chunk, and their neighbours, who help.
        let groups = &self.shared.groups[..n_chunks.min(self.threads()).div_ceil(GROUP)];
        self.open(region, *n_regions, groups, n_chunks);
        INSIDE.set(true);
        work(&self.shared, region, 0);
        INSIDE.set(false);
        close(groups);
        let panicked = self.shared.panic.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panicked {
            resume_unwind(payload);
        }
    }

    /// [`Pool::run`] of more chunks than can be dealt out: some neighbours at a time are one.
    fn run_together(&self, n_chunks: usize, task: &Task<'_>) {
        let together = n_chunks.div_ceil(MOST_CHUNKS);
        self.run(n_chunks.div_ceil(together), &|chunk, thread| {
            let first = chunk * together;
            (first..(first + together).min(n_chunks)).for_each(|chunk| task(chunk, thread));
        });
    }

    /// Publishes the region to these groups and wakes parked workers that have chunks.
    fn open(&self, region: Region, number: u64, groups: &[Group], n_chunks: usize) {
        let shared = &*self.shared;
        if region.deal.is_first_round() {
            shared.shares.forget();
        }
        // SAFETY: all groups are closed and nobody is inside (`close` waited for that), and we hold
        // `n_regions`, so no other thread reads or writes the region now.
        unsafe { *shared.region.0.get() = region };
        for group in groups {
            group.state.0.store(number << NUMBER_AT | OPEN, Ordering::Release);
        }
        // Pairs with the fence in `park_until_open`: either we see the bit or it sees the state.
        fence(Ordering::SeqCst);
        for group in 0..groups.len() {
            shared.wake_group(group, n_chunks);
        }
    }
}

/// Lets no thread enter these groups any more, and waits for those inside.
fn close(groups: &[Group]) {
    for group in groups {
        group.state.0.fetch_and(!OPEN, Ordering::AcqRel);
    }
    let mut turns = 0u32;
    for group in groups {
        while group.state.0.load(Ordering::Acquire) & ACTIVE_MASK != 0 {
            turns = turns.saturating_add(1);
            if turns < CALLER_SPINS {
                std::hint::spin_loop();
            } else if turns < CALLER_SPINS + CALLER_YIELDS {
                thread::yield_now();
            } else {
                thread::sleep(CALLER_NAP);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in &self.workers {
            worker.thread().unpark();
        }
        for worker in self.workers.drain(..) {
            // A worker catches its chunks' panics, so a join error concerns no caller.
            drop(worker.join());
        }
    }
}

impl Shared {
    fn new(n_threads: usize) -> Self {
        let idle: *const Task<'static> = &|_: usize, _: usize| {};
        let region = Region { task: idle, deal: Deal::new(0, 0) };
        let zero = || Padded(AtomicU64::new(0));
        let group = || Group { state: zero(), parked: zero() };
        Self {
            region: Padded(UnsafeCell::new(region)),
            groups: (0..n_threads.div_ceil(GROUP)).map(|_| group()).collect(),
            shares: Shares::of(n_threads),
            threads: (0..n_threads).map(|_| OnceLock::new()).collect(),
            stop: AtomicBool::new(false),
            panic: Padded(Mutex::new(None)),
        }
    }

    /// Members of a group that are parked and that a region of `n_chunks` has chunks for.
    fn sleeping(&self, group: usize, n_chunks: usize) -> u64 {
        let wanted = n_chunks.saturating_sub(group * GROUP).min(GROUP);
        self.groups[group].parked.0.load(Ordering::Relaxed) & ((1 << wanted) - 1)
    }

    /// Wakes members of a group for a region of `n_chunks`: all of the caller's own, of any other one, which then wakes its
    /// neighbours.
    fn wake_group(&self, group: usize, n_chunks: usize) {
        loop {
            let sleeping = self.sleeping(group, n_chunks);
            let chosen = if group == 0 { sleeping } else { sleeping & sleeping.wrapping_neg() };
            // One that leaves by itself meanwhile may not have seen the region: the next is chosen.
            if chosen == 0 || self.wake(group, chosen) {
                return;
            }
        }
    }

    /// Wakes these members of a group, each unless it leaves by itself or another thread wakes it. Returns whether
    /// there was any.
    fn wake(&self, group: usize, members: u64) -> bool {
        // Releases the open state to those that are woken.
        let woken = self.groups[group].parked.0.fetch_and(!members, Ordering::AcqRel) & members;
        let members = (0..GROUP).filter(|member| woken & (1 << member) != 0);
        let threads = members.filter_map(|member| self.threads[group * GROUP + member].get());
        threads.for_each(Thread::unpark);
        woken != 0
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
        let mut claims = shared.shares.claims(region.deal, thread);
        while let Some(chunk) = claims.next() {
            task(chunk, thread);
        }
    }));
    if let Err(payload) = outcome {
        shared.shares.abandon(region.deal);
        shared.panic.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
    }
}

fn worker_loop(shared: &Shared, index: usize, cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        // Pinning is a wish: without it the thread runs all the same.
        pin_current(cpu);
    }
    shared.threads[index].get_or_init(thread::current);
    INSIDE.set(true);
    let state = &shared.groups[index / GROUP].state.0;
    let mut served = 0u64;
    while !shared.stop.load(Ordering::Acquire) {
        match wait(state, served) {
            Some(number) => served = number,
            None => {
                park_until_open(shared, index, served);
                continue;
            }
        }
        if enter(state, served) {
            // SAFETY: entered while open, so the region was published before (Acquire in `enter`)
            // and is not written again until this thread has left.
            let region = unsafe { *shared.region.0.get() };
            work(shared, region, index);
            state.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Whether the state offers a region that this worker has not served.
fn offered(state: u64, served: u64) -> Option<u64> {
    let number = state >> NUMBER_AT;
    (state & OPEN != 0 && number != served).then_some(number)
}

/// Spins a bounded while for a new region.
fn wait(state: &AtomicU64, served: u64) -> Option<u64> {
    for _ in 0..WORKER_SPINS {
        if let Some(number) = offered(state.load(Ordering::Acquire), served) {
            return Some(number);
        }
        std::hint::spin_loop();
    }
    None
}

/// Counts this thread in if the region is still open.
fn enter(state: &AtomicU64, number: u64) -> bool {
    let mut now = state.load(Ordering::Relaxed);
    while now & OPEN != 0 && now >> NUMBER_AT == number {
        match state.compare_exchange_weak(now, now + 1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
    false
}

fn park_until_open(shared: &Shared, thread: usize, served: u64) {
    let (index, bit) = (thread / GROUP, 1 << (thread % GROUP));
    let Group { state, parked } = &shared.groups[index];
    parked.0.fetch_or(bit, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    let is_idle = offered(state.0.load(Ordering::Relaxed), served).is_none();
    if is_idle && !shared.stop.load(Ordering::Relaxed) {
        thread::park();
    }
    parked.0.fetch_and(!bit, Ordering::AcqRel);
    if index != 0 && state.0.load(Ordering::Acquire) & OPEN != 0 {
        // The caller has woken one of the group alone.
        let sleeping = parked.0.load(Ordering::Relaxed);
        if sleeping != 0 {
            shared.wake(index, sleeping);
        }
    }
}

//! A fork-join pool of persistent threads, made for token generation. Starting and ending a parallel region
//! costs about a microsecond. Between regions, threads spin for a bounded while and then park.
//!
//! - Every chunk of a region runs exactly once, and [`Pool::run`] returns after the last one.
//! - A panic in a chunk reaches the caller.
//! - A thread that the system has not scheduled in time is not waited for: the others compute its share.
//!
//! With many threads a region costs what they do to each other's cache lines. So a region is one word, which only
//! the caller writes. A thread says in a word of its own that it is inside, and those of neighbours lie on one line.
//! Regions with few chunks concern few groups of neighbours.
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
use super::sync::{AtomicBool, AtomicU64, Ordering};

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
}

/// A region's number, its chunks, and whether threads may enter it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct State(u64);

impl State {
    const OPEN: u64 = 1;
    const CHUNKS_AT: u32 = 1;
    const NUMBER_AT: u32 = 1 + MOST_CHUNKS.count_ones();

    /// The region after this one.
    fn after(self, n_chunks: usize) -> Self {
        let number = self.number() + 1;
        Self(number << Self::NUMBER_AT | (n_chunks as u64) << Self::CHUNKS_AT | Self::OPEN)
    }

    fn closed(self) -> Self {
        Self(self.0 & !Self::OPEN)
    }

    fn is_open(self) -> bool {
        self.0 & Self::OPEN != 0
    }

    fn n_chunks(self) -> usize {
        (self.0 >> Self::CHUNKS_AT) as usize & MOST_CHUNKS
    }

    fn number(self) -> u64 {
        self.0 >> Self::NUMBER_AT
    }

    fn deal(self) -> Deal {
        Deal::new(self.number(), self.n_chunks())
    }

    /// Threads that may enter, the caller included: those with a chunk, and their neighbours, who help.
    fn concerns(self) -> usize {
        self.n_chunks().next_multiple_of(GROUP)
    }

    /// Whether it is open to a thread that has served the region number `served`.
    fn offers(self, thread: usize, served: u64) -> bool {
        self.is_open() && self.number() != served && thread < self.concerns()
    }
}

/// What the caller writes for a region, on one cache line.
struct Front {
    state: AtomicU64,
    region: UnsafeCell<Region>,
}

/// Threads that are neighbours.
struct Group {
    /// Whether each may be inside of a region. Its thread alone writes it.
    inside: Padded<[AtomicBool; GROUP]>,
    /// A bit for each that is parked, or about to be.
    parked: Padded<AtomicU64>,
}

struct Shared {
    front: Padded<Front>,
    groups: Vec<Group>,
    shares: Shares,
    /// Handles of the threads; none of the caller. A thread sets its own before it parks.
    threads: Vec<OnceLock<Thread>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

// SAFETY: `region` is written only by the holder of `Pool::caller` while the state is closed and
// nobody is inside (`Pool::close`), and read only by threads that entered while it was open (`Shared::enter`).
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `region` is only followed under the rule above.
unsafe impl Send for Shared {}

/// A fork-join pool; the calling thread takes part as thread 0.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
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
        let n_threads = threads.clamp(1, MAX_THREADS);
        let cpus = cpus.filter(|c| !c.is_empty()).map(<[usize]>::to_vec);
        let shared = Arc::new(Shared::new(n_threads));
        let mut pool = Self { shared, workers: Vec::new(), caller: Mutex::new(()), cpus };
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
        let _only_caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.open(n_chunks, task);
        INSIDE.set(true);
        work(&self.shared, Region { task: erase(task) }, state, 0);
        INSIDE.set(false);
        self.close(state);
        let panicked = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
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

    /// Publishes the region and wakes parked workers that have chunks.
    fn open(&self, n_chunks: usize, task: &Task<'_>) -> State {
        let shared = &*self.shared;
        // Only the holder of `caller` writes the state.
        let state = State(shared.front.0.state.load(Ordering::Relaxed)).after(n_chunks);
        if state.deal().is_first_round() {
            shared.shares.forget();
        }
        // SAFETY: the state is closed and nobody is inside (`close` waited for that), and we hold
        // `caller`, so no other thread reads or writes the region now.
        unsafe { *shared.front.0.region.get() = Region { task: erase(task) } };
        // In one order with the operations of `park_until_open`: either we see its bit or it sees this state.
        shared.front.0.state.store(state.0, Ordering::SeqCst);
        for group in 0..n_chunks.min(self.threads()).div_ceil(GROUP) {
            shared.wake_group(group, n_chunks);
        }
        state
    }

    /// Lets no thread enter any more, and waits for those inside.
    fn close(&self, state: State) {
        let shared = &*self.shared;
        // In one order with the operations of `enter`: either it sees this state or we see that it is inside.
        shared.front.0.state.store(state.closed().0, Ordering::SeqCst);
        let mut turns = 0u32;
        for thread in 1..self.threads().min(state.concerns()) {
            while shared.inside(thread).load(Ordering::SeqCst) {
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
        let region = UnsafeCell::new(Region { task: idle });
        let group = || Group {
            inside: Padded([const { AtomicBool::new(false) }; GROUP]),
            parked: Padded(AtomicU64::new(0)),
        };
        Self {
            front: Padded(Front { state: AtomicU64::new(0), region }),
            groups: (0..n_threads.div_ceil(GROUP)).map(|_| group()).collect(),
            shares: Shares::of(n_threads),
            threads: (0..n_threads).map(|_| OnceLock::new()).collect(),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        }
    }

    fn inside(&self, thread: usize) -> &AtomicBool {
        &self.groups[thread / GROUP].inside.0[thread % GROUP]
    }

    /// The state of a region that is open to this thread, which is then inside.
    fn enter(&self, thread: usize, served: u64) -> Option<State> {
        let inside = self.inside(thread);
        // In one order with the operations of `close`. If we see an open state here, then its closing comes later, and after that
        // the caller sees that we are inside. It waits before it writes the region again.
        inside.store(true, Ordering::SeqCst);
        let state = State(self.front.0.state.load(Ordering::SeqCst));
        if state.offers(thread, served) {
            return Some(state);
        }
        inside.store(false, Ordering::Release);
        None
    }

    /// Members of a group that are parked and that a region of `n_chunks` has chunks for.
    fn sleeping(&self, group: usize, n_chunks: usize) -> u64 {
        let wanted = (n_chunks - (group * GROUP).min(n_chunks)).min(GROUP);
        self.groups[group].parked.0.load(Ordering::SeqCst) & ((1 << wanted) - 1)
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
fn work(shared: &Shared, region: Region, state: State, thread: usize) {
    // SAFETY: the caller of `Pool::run` keeps the task alive until the region is closed and nobody
    // is inside; this thread is inside (or is that caller).
    let task = unsafe { &*region.task };
    let deal = state.deal();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut claims = shared.shares.claims(deal, thread);
        while let Some(chunk) = claims.next() {
            task(chunk, thread);
        }
    }));
    if let Err(payload) = outcome {
        shared.shares.abandon(deal);
        shared.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
    }
}

fn worker_loop(shared: &Shared, index: usize, cpu: Option<usize>) {
    if let Some(cpu) = cpu {
        // Pinning is a wish: without it the thread runs all the same.
        pin_current(cpu);
    }
    shared.threads[index].get_or_init(thread::current);
    INSIDE.set(true);
    let mut served = 0u64;
    while !shared.stop.load(Ordering::Acquire) {
        if !wait(shared, index, served) {
            park_until_open(shared, index, served);
            continue;
        }
        if let Some(state) = shared.enter(index, served) {
            served = state.number();
            // SAFETY: entered while open, so the region was published before (`enter` acquires what `open` released)
            // and is not written again until this thread has left.
            let region = unsafe { *shared.front.0.region.get() };
            work(shared, region, state, index);
            shared.inside(index).store(false, Ordering::Release);
        }
    }
}

/// Spins a bounded while for a region to serve, anew after each that is not for this thread. Returns whether there is one.
fn wait(shared: &Shared, thread: usize, served: u64) -> bool {
    let (mut turns, mut last) = (0, None);
    while turns < WORKER_SPINS {
        let state = State(shared.front.0.state.load(Ordering::Acquire));
        if state.offers(thread, served) {
            return true;
        }
        turns = if last == Some(state) { turns + 1 } else { 0 };
        last = Some(state);
        std::hint::spin_loop();
    }
    false
}

fn park_until_open(shared: &Shared, thread: usize, served: u64) {
    let (group, bit) = (thread / GROUP, 1 << (thread % GROUP));
    let parked = &shared.groups[group].parked.0;
    parked.fetch_or(bit, Ordering::SeqCst);
    let state = State(shared.front.0.state.load(Ordering::SeqCst));
    if !state.offers(thread, served) && !shared.stop.load(Ordering::SeqCst) {
        thread::park();
    }
    parked.fetch_and(!bit, Ordering::AcqRel);
    let state = State(shared.front.0.state.load(Ordering::Acquire));
    if group != 0 && state.is_open() {
        // The caller has woken one of the group alone.
        let sleeping = shared.sleeping(group, state.n_chunks());
        if sleeping != 0 {
            shared.wake(group, sleeping);
        }
    }
}

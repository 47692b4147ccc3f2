//! Threads for work that strangers ask for: grammars and masks. Owners take turns, and none of them has all threads.
//!
//! The threads have a low priority. On a core that also computes models each takes a tenth of it at most, however many
//! grammars come, and gets that tenth: at the lowest priority an answer would wait minutes for a grammar of milliseconds.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Threads of one [`Turns`]. One owner has all but one at most, so that another one's work begins at once.
pub const THREADS: usize = 2;

/// Their nice value: Linux weighs it as 110 beside 1024 of threads that compute models (`sched_prio_to_weight`).
const NICE: i32 = 10;

/// Owners whose last turn is remembered, beyond those that have work here.
const MAX_REMEMBERED: usize = 1024;

type Work = Box<dyn FnOnce() + Send>;

/// The threads, and what waits for them. They end when this is dropped.
#[derive(Debug)]
pub struct Turns {
    name: &'static str,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// There is work, or there will be none.
    work: Condvar,
    /// Some work is done.
    done: Condvar,
}

#[derive(Default)]
struct Queue {
    /// In the order in which they came, with their owners.
    waiting: VecDeque<(u64, Work)>,
    /// Number of threads at work for each owner.
    at_work: BTreeMap<u64, usize>,
    /// Number of each owner's last turn, counted over all owners.
    last_turn: BTreeMap<u64, u64>,
    turns: u64,
    threads: usize,
    closed: bool,
}

impl Turns {
    /// Threads of this name; none is started before there is work.
    pub fn new(name: &'static str) -> Self {
        Self { name, shared: Arc::default() }
    }

    /// Hands over some work of an owner. Where the system gives no thread, it is done here and now.
    pub fn push(&self, owner: u64, work: impl FnOnce() + Send + 'static) {
        let mut queue = self.shared.lock();
        queue.waiting.push_back((owner, Box::new(work)));
        if queue.threads < THREADS {
            self.start(&mut queue);
        }
        if queue.threads == 0 {
            while let Some(work) = queue.waiting.pop_back() {
                drop(queue);
                work.1();
                queue = self.shared.lock();
            }
        }
        drop(queue);
        self.shared.work.notify_all();
    }

    fn start(&self, queue: &mut Queue) {
        let shared = self.shared.clone();
        let body = move || {
            // A system that refuses gives it the usual priority.
            let _ = rustix::process::setpriority_process(None, NICE);
            run_anywhere();
            shared.work_on();
        };
        match thread::Builder::new().name(self.name.to_owned()).spawn(body) {
            Ok(_) => queue.threads += 1,
            Err(error) => tracing::warn!(%error, "no thread for {}", self.name),
        }
    }

    /// Waits until `holds`, which is looked at whenever some work is done, but no longer than `within`.
    pub fn wait(&self, within: Option<Duration>, mut holds: impl FnMut() -> bool) {
        let end = within.map(|within| Instant::now() + within);
        let mut queue = self.shared.lock();
        while !holds() {
            let Some(end) = end else {
                queue = self.shared.done.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.done.wait_timeout(queue, left);
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Lets the calling thread run wherever the process may: the thread that started it may be pinned. A system that refuses leaves it
/// there.
#[cfg(target_os = "linux")]
fn run_anywhere() {
    use rustix::thread::{sched_getaffinity, sched_setaffinity};
    // The first thread of a process is never pinned.
    let _ = sched_getaffinity(Some(rustix::process::getpid()))
        .and_then(|cpus| sched_setaffinity(None, &cpus));
}

#[cfg(not(target_os = "linux"))]
fn run_anywhere() {}

impl Drop for Turns {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.closed = true;
        queue.waiting.clear();
        drop(queue);
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // Nothing panics while it is held; if it did, the queue would still be whole.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Main loop of a thread.
    fn work_on(&self) {
        let mut queue = self.lock();
        loop {
            if queue.closed {
                return;
            }
            let Some((owner, work)) = queue.take() else {
                queue = self.work.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            if catch_unwind(AssertUnwindSafe(work)).is_err() {
                tracing::error!("making a mask or a grammar panicked");
            }
            queue = self.lock();
            queue.is_done(owner);
            self.done.notify_all();
            // Another of the owner's may have waited for this one.
            self.work.notify_all();
        }
    }
}

impl Queue {
    /// The next work: of the owners that may have another thread, the one whose last turn is longest ago.
    fn take(&mut self) -> Option<(u64, Work)> {
        let most = (THREADS - 1).max(1);
        let may = |owner: &u64| self.at_work.get(owner).is_none_or(|n| *n < most);
        let waiting = self.waiting.iter().enumerate().filter(|(_, (owner, _))| may(owner));
        let turn = |owner: &u64| self.last_turn.get(owner).copied().unwrap_or(0);
        let (at, _) = waiting.min_by_key(|(at, (owner, _))| (turn(owner), *at))?;
        let (owner, work) = self.waiting.remove(at)?;
        *self.at_work.entry(owner).or_default() += 1;
        self.turns += 1;
        if self.last_turn.len() > MAX_REMEMBERED {
            self.last_turn.clear();
        }
        self.last_turn.insert(owner, self.turns);
        Some((owner, work))
    }

    fn is_done(&mut self, owner: u64) {
        if let Some(n) = self.at_work.get_mut(&owner) {
            *n -= 1;
            if *n == 0 {
                self.at_work.remove(&owner);
            }
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn an_owner_with_much_work_leaves_a_thread_and_turns_to_others() {
        let turns = Turns::new("turns");
        let (release, held) = channel::<()>();
        let (tell, told) = channel();
        // Held open: nothing of this owner goes on before it is let go.
        turns.push(1, move || held.recv().unwrap_or(()));
        for n in 0..20 {
            let tell = tell.clone();
            turns.push(1, move || tell.send((1, n)).unwrap_or(()));
        }
        for n in 0..3 {
            let tell = tell.clone();
            turns.push(2, move || tell.send((2, n)).unwrap_or(()));
        }
        let first: Vec<_> = (0..3).map(|_| told.recv().unwrap()).collect();
        assert_eq!(
            first,
            [(2, 0), (2, 1), (2, 2)],
            "the polite one is served while the other waits"
        );
        release.send(()).unwrap();
        let rest: Vec<_> = (0..20).map(|_| told.recv().unwrap()).collect();
        assert_eq!(rest, (0..20).map(|n| (1, n)).collect::<Vec<_>>());
    }

    #[test]
    fn among_those_who_wait_the_one_served_longest_ago_is_next() {
        let mut queue = Queue::default();
        for owner in [1, 1, 1, 2, 3, 2] {
            queue.waiting.push_back((owner, Box::new(|| ())));
        }
        let mut order = Vec::new();
        while let Some((owner, _)) = queue.take() {
            order.push(owner);
            queue.is_done(owner);
        }
        assert_eq!(order, [1, 2, 3, 1, 2, 1]);
    }

    #[test]
    fn work_that_panics_takes_no_thread_along() {
        let turns = Turns::new("turns");
        let (tell, told) = channel();
        for _ in 0..2 * THREADS {
            turns.push(1, || panic!("on purpose"));
        }
        turns.push(1, move || tell.send(()).unwrap_or(()));
        told.recv().unwrap();
    }
}

//! Threads for reading and hashing weights: as many as the stage computes with, and on the same CPUs. This
//! work takes minutes, so it must keep to `--threads` and `--cpus` as the stage does. On a node other stages compute meanwhile,
//! and a thread that the system holds up there holds up all threads of its ubatch: so these threads let others go first.

use std::fmt;
use std::sync::Arc;

/// Name of each thread in listings of the process.
pub const THREAD_NAME: &str = "weights";

/// What the system is told of how little a thread minds to wait. At this, one that computes has nine tenths of a core for which
/// both ask.
const NICE: i32 = 10;

/// A fixed number of threads, which sleep when there is nothing to do. Clones share them.
#[derive(Clone)]
pub struct Pool(Arc<rayon::ThreadPool>);

/// The system refuses threads.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {threads} threads that read weights: {reason}")]
pub struct PoolError {
    threads: usize,
    reason: rayon::ThreadPoolBuildError,
}

impl Pool {
    /// Starts `threads` threads; thread `i` is pinned to the `i`-th of `cpus`, in turn, unless there
    /// are none.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn new(threads: usize, cpus: &[usize]) -> Result<Self, PoolError> {
        Self::with(threads, cpus, || ())
    }

    /// The same, of threads that let other threads of the machine go first.
    ///
    /// # Errors
    /// [`PoolError`].
    pub fn that_lets_others_go_first(threads: usize, cpus: &[usize]) -> Result<Self, PoolError> {
        Self::with(threads, cpus, || {
            // It is about the thread that calls.
            if let Err(error) = rustix::process::nice(NICE) {
                tracing::warn!(%error, "a thread that reads weights cannot let others go first: loading may hold up the node's other stages");
            }
        })
    }

    /// `begin` runs on each thread first.
    fn with(
        threads: usize,
        cpus: &[usize],
        begin: impl Fn() + Send + Sync + 'static,
    ) -> Result<Self, PoolError> {
        let cpus = cpus.to_vec();
        let pin = move |thread: usize| {
            begin();
            let Some(&id) = (!cpus.is_empty()).then(|| &cpus[thread % cpus.len()]) else { return };
            if !core_affinity::set_for_current(core_affinity::CoreId { id }) {
                tracing::warn!(cpu = id, "cannot pin a thread that reads weights to this CPU");
            }
        };
        rayon::ThreadPoolBuilder::new()
            .num_threads(threads.max(1))
            .thread_name(|_| THREAD_NAME.to_owned())
            .start_handler(pin)
            .build()
            .map(|pool| Self(Arc::new(pool)))
            .map_err(|reason| PoolError { threads, reason })
    }

    /// Runs `work` on these threads, including its parallel parts.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.install(work)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} threads)", self.0.current_num_threads())
    }
}

#[cfg(test)]
mod tests {
    use rayon::prelude::*;

    use super::*;

    #[test]
    fn threads_that_let_others_go_first_are_those_of_their_pool_alone() {
        // The nineteenth field of a thread's state, behind its name in brackets.
        let niceness = || -> i32 {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().parse().unwrap()
        };
        let own = niceness();
        let polite = Pool::that_lets_others_go_first(2, &[]).unwrap();
        assert_eq!(polite.run(niceness), (own + NICE).min(19));
        assert_eq!(Pool::new(1, &[]).unwrap().run(niceness), own);
        assert_eq!(niceness(), own);
    }

    #[test]
    fn threads_are_as_many_as_asked_for_and_where_they_belong() {
        let allowed = |_| {
            let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
            let list = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"));
            list.map(|list| list.trim().to_owned())
        };
        let pool = Pool::new(3, &[0]).unwrap();
        let cpus: Vec<Option<String>> = pool.run(|| (0..64).into_par_iter().map(allowed).collect());
        assert!(cpus.iter().flatten().all(|list| list == "0"), "{cpus:?}");
        assert_eq!(pool.run(rayon::current_num_threads), 3);
    }
}

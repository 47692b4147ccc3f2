//! The means of every op on the host: one kernel table and one thread pool. Each stage has one such pair.

use super::pool::Pool;
use super::table::Kernels;
use crate::tiles::products::activations::ReusedRows;
use brigade_quant::KernelError;

/// An op table with the threads to run it on. Ops are methods, spread over the files of this module
/// by what they do; each spreads its rows over the pool when they are worth it.
pub struct Compute {
    kernels: &'static Kernels,
    pool: Pool,
    pub(super) reused: ReusedRows,
}

impl Compute {
    /// Starts `threads` compute threads, the calling one included, pinned to `cpus` if given (see
    /// [`Pool::new`]; the caller pins itself with [`Pool::pin_caller`]).
    ///
    /// # Errors
    /// [`KernelError::Threads`] when the system refuses a thread.
    pub fn new(
        kernels: &'static Kernels,
        threads: usize,
        cpus: Option<&[usize]>,
    ) -> Result<Self, KernelError> {
        let pool =
            Pool::new(threads, cpus).map_err(|source| KernelError::Threads { threads, source })?;
        Ok(Self { kernels, pool, reused: ReusedRows::default() })
    }

    /// The table in use.
    pub fn kernels(&self) -> &'static Kernels {
        self.kernels
    }

    /// The threads in use.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Splits `n_rows` rows of `row_cost` (in elements touched) into ranges and runs `task` on each,
    /// on this thread alone when the whole is too small to share.
    pub(super) fn for_rows(
        &self,
        n_rows: usize,
        row_cost: usize,
        task: &(dyn Fn(std::ops::Range<usize>) + Sync),
    ) {
        let each = n_rows.saturating_mul(row_cost) / self.pool.threads();
        let chunk = each.clamp(LEAST_CHUNK_ELEMENTS, MOST_CHUNK_ELEMENTS);
        let rows_per_chunk = (chunk / row_cost.max(1)).max(1);
        let n_chunks = n_rows.div_ceil(rows_per_chunk);
        self.pool.run(n_chunks, &|chunk, _| {
            let start = chunk * rows_per_chunk;
            task(start..(start + rows_per_chunk).min(n_rows));
        });
    }
}

/// Elements of an elementwise op that are worth a chunk of their own, if there are threads without one. The lightest op takes
/// 0.2 microseconds for so many and a heavy one 1.3, and a region of two threads costs 0.25 (bench `kernels`, cases `rowwise` and
/// `fork-join`, on Zen 5). Regions of few chunks cost no more with more threads.
const LEAST_CHUNK_ELEMENTS: usize = 8 * 1024;

/// Elements of a chunk where all threads have some.
const MOST_CHUNK_ELEMENTS: usize = 16 * 1024;

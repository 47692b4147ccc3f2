//! Kernels are compiled before they are first needed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::device::Gpu;
use crate::error::GpuError;
use crate::pipelines::Wanted;

impl Gpu {
    /// Compiles all kernels that `pass` runs and that were not compiled before, on all cores at once, and returns how
    /// many these were. The pass itself computes nothing: what this thread tells the device is left out, and memory
    /// that it takes is zero. States that it writes stay as they are. The device runs the ops of other threads as
    /// usual.
    ///
    /// # Errors
    /// A kernel does not compile, or the device failed before.
    pub fn rehearse(&self, pass: impl FnOnce()) -> Result<usize, GpuError> {
        let begun = self.rehearsal().begin();
        pass();
        let found = begun.end();
        self.check()?;
        let wanted = self.not_compiled(found);
        self.compile(&wanted)?;
        self.save_pipelines();
        Ok(wanted.len())
    }

    /// Compiles kernels, on all cores at once.
    fn compile(&self, wanted: &[Wanted]) -> Result<(), GpuError> {
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some(wanted) = wanted.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.make_pipeline(wanted)?;
            }
            Ok(())
        };
        let n_threads = thread::available_parallelism().map_or(1, usize::from).min(wanted.len());
        thread::scope(|scope| {
            let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
            let done = threads.into_iter().map(|thread| match thread.join() {
                Ok(done) => done,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            done.fold(Ok(()), Result::and)
        })
    }
}

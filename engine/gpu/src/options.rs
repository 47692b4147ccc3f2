//! Options for the use of a GPU.

use std::path::PathBuf;
use std::time::Duration;

/// Options for the use of a GPU.
#[derive(Clone, Debug)]
pub struct GpuOptions {
    /// Folder that keeps compiled kernels from one run to the next; `None`: they are compiled in each.
    pub pipeline_cache: Option<PathBuf>,
    /// Most bytes of device memory to take; `None`: what there is.
    pub memory_limit: Option<u64>,
    /// After so many batches of commands the device counts as lost: for tests of what happens then.
    pub lose_after: Option<u64>,
    /// Whether matrix units are used where there are some. The bits are the same without them.
    pub matrix_units: bool,
    /// Whether products of many rows are computed in f16 by matrix units: bits of the device's own, which depend on how many
    /// rows are together. A device without such units is not opened then.
    pub fast_math: bool,
    /// Whether weights and states lie where the host does not see them even if it could: as with a card of its own, for tests.
    pub apart: bool,
    /// Longest time without progress, after which the device counts as hanging.
    pub patience: Duration,
    /// Whether each run of a kernel is timed ([`Gpu::kernel_times`](crate::Gpu::kernel_times)). The host then waits for each
    /// batch: it is for measuring kernels alone.
    pub timed: bool,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            pipeline_cache: None,
            memory_limit: None,
            lose_after: None,
            matrix_units: true,
            fast_math: false,
            apart: false,
            patience: Duration::from_secs(300),
            timed: false,
        }
    }
}

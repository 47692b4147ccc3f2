//! What a stage computes on: the one place that knows which memory rows lie in, and where an op runs.
//!
//! Blocks, stage and head call a [`Device`] and hold [`Rows`]. They know neither threads nor instruction sets.

mod attention;
mod elementwise;
mod gates;
mod memory;
mod moves;
mod norms;
mod products;
mod rows;
mod scans;
mod values;

use std::ops::Deref;

pub use attention::{AttendOver, KvRows};
pub use memory::Memory;
pub use moves::Share;
pub use products::Product;
pub use rows::{Rows, RowsMut, RowsPart, Scratch};
pub use scans::{Columns, DeltaRows, MambaRows, SsdInput, Wkv6Rows, Wkv7Rows};
pub use values::{Values, ValuesMut};

use crate::kernels::{Compute, KernelError, Kernels};

/// The kernels and threads of a stage.
pub struct Device {
    compute: Compute,
}

impl Device {
    /// The CPU: a kernel table with `threads` threads ([`Compute::new`]).
    ///
    /// # Errors
    /// [`KernelError::Threads`] when the system refuses a thread.
    pub fn cpu(
        kernels: &'static Kernels,
        threads: usize,
        cpus: Option<&[usize]>,
    ) -> Result<Self, KernelError> {
        Compute::new(kernels, threads, cpus).map(Self::from)
    }
}

impl Device {
    /// Memory for states, zero at first; `None` where there is not that much.
    pub fn memory<T: bytemuck::Pod>(&self, len: usize) -> Option<Memory<T>> {
        Memory::new(len)
    }
}

impl From<Compute> for Device {
    fn from(compute: Compute) -> Self {
        Self { compute }
    }
}

/// Ops that run on the host, wherever rows lie.
impl Deref for Device {
    type Target = Compute;

    fn deref(&self) -> &Compute {
        &self.compute
    }
}

//! What a stage computes on: the one place that knows which memory rows lie in, and where an op runs.
//!
//! Blocks, stage and head call a [`Device`] and hold [`Rows`]. They know neither threads nor instruction sets. An op gives the
//! same bits on the host and on a GPU, for which the host then has the kernels [`unfused`]; with fast math, products of many rows
//! have others. Here no model, file or layer is known.

mod beside;
mod copies;
mod devices;
mod elementwise;
mod entries;
mod expert_changes;
mod expert_job;
mod experts;
mod fetched;
mod gates;
mod guests;
mod hot;
mod index;
mod lists;
mod memory;
mod moves;
mod name;
mod norms;
mod on_gpu;
mod places;
mod pools;
mod probe;
mod products;
mod routing;
mod rows;
mod run;
mod self_test;
mod store;
mod streams;
mod values;
mod visits;

use std::sync::Arc;

use beside::Beside;
use brigade_gpu::{Gpu, SpanMut};

pub use beside::{Away, ExpertCounts, Sent};
pub use brigade_gpu::{FewValues, Handed, KernelTime, Milestone};
pub use brigade_gpu::{GpuError, GpuFacts, GpuKind, GpuOptions};
pub use devices::{Devices, gpus};
pub use entries::{EntriesOver, EntryIndexOver};
pub use expert_changes::{ExpertChange, RoutingPart};
pub use expert_job::{ExpertWay, ExpertWays};
pub use experts::{ExpertMatrices, ExpertProduct, ExpertRows};
pub use fetched::Fetched;
pub use guests::{ExpertShares, GUESTS_AT_ONCE, Guests, RoutingShare, bytes_for_guests};
pub use index::{IndexOfMeans, IndexOver, PoolingBy};
pub use lists::Lists;
pub use memory::Memory;
pub use moves::FewGreatest;
pub use name::{DeviceName, DeviceWish, split_beside};
pub use on_gpu::{buffer_of, pack_with_gpu, refused};
pub use pools::{GatedAt, ValuesAt};
pub use products::Product;
pub use routing::Routing;
pub use rows::{Rows, RowsMut, RowsPart, Scratch};
pub use streams::Weighed;
pub use values::{Values, ValuesMut};
pub use visits::{VisitSpeeds, Visits};

use crate::kernels::{
    Compute, KernelError, Kernels, NUMERICS_UNFUSED, PackedMatrix, fast_numerics, unfused,
};
use crate::quant::GgmlType;

/// The kernels and threads of a stage.
pub struct Device {
    compute: Arc<Compute>,
    gpu: Option<Gpu>,
    /// The host, for experts whose matrices shall not take the GPU's memory.
    beside: Option<Box<Beside>>,
    name: String,
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
    pub fn memory<T: crate::ops::Element>(&self, len: usize) -> Option<Memory<T>> {
        Memory::new(self.gpu.as_ref(), len)
    }

    /// Memory for states that the host reads whatever computes, zero at first; `None` where there is not that much.
    pub fn host_memory<T: crate::ops::Element>(&self, len: usize) -> Option<Memory<T>> {
        Memory::new(None, len)
    }

    /// Where rows come from.
    pub fn scratch(&self) -> Scratch {
        Scratch::new(self.gpu.clone())
    }

    /// Packs `bytes`, the row-major weights `[rows, cols]` of a GGUF tensor of type `ty`, where products read them.
    ///
    /// # Errors
    /// Those of [`PackedMatrix::pack`]; [`KernelError::Device`] where a GPU has no room for them.
    pub fn pack(
        &self,
        ty: GgmlType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<PackedMatrix, KernelError> {
        match &self.gpu {
            None => PackedMatrix::pack(&self.compute, ty, rows, cols, bytes),
            Some(gpu) => on_gpu::pack_with_gpu(&self.compute, gpu, (ty, rows, cols), bytes),
        }
    }

    /// The CPU, with kernels and threads that others may use too.
    fn of(compute: Arc<Compute>) -> Self {
        let name = compute.kernels().name.to_owned();
        Self { compute, gpu: None, beside: None, name }
    }

    /// The GPU that values lie with, and these, to be written there.
    fn gpu_of<'a>(
        &'a self,
        values: &'a mut (impl ValuesMut + ?Sized),
    ) -> Option<(&'a Gpu, SpanMut<'a>)> {
        let gpu = self.gpu.as_ref()?;
        Some((gpu, values.span_mut()?))
    }
}

impl Device {
    /// A GPU. What it has no kernel for runs on `threads` threads, on the same memory and with the same bits.
    ///
    /// # Errors
    /// [`KernelError::Threads`] when the system refuses a thread.
    fn vulkan(
        gpu: Gpu,
        name: &DeviceName,
        threads: usize,
        cpus: Option<&[usize]>,
    ) -> Result<Self, KernelError> {
        let compute = Arc::new(Compute::new(unfused(), threads, cpus)?);
        let beside = Some(Box::new(Beside::new(compute.clone())));
        Ok(Self { compute, gpu: Some(gpu), beside, name: name.to_string() })
    }

    /// Where what this device keeps lies.
    pub fn home(&self) -> Home {
        Home(self.gpu.clone())
    }

    /// The host's kernels and threads: for what is made before a GPU gets it, such as packed weights and tables.
    pub fn host(&self) -> &Compute {
        &self.compute
    }

    /// The number of what it computes: [`NUMERICS`](crate::kernels::NUMERICS) and those beside it.
    pub fn numerics(&self) -> u32 {
        self.gpu.as_ref().map_or(self.compute.kernels().numerics, numerics_of)
    }

    /// Whether products of many rows have bits of their own: [`GpuOptions::fast_math`].
    pub fn has_fast_math(&self) -> bool {
        self.gpu.as_ref().is_some_and(Gpu::has_fast_math)
    }

    /// Whether a GPU computes.
    pub fn has_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// How often the host waited for a GPU so far.
    pub fn waits(&self) -> u64 {
        self.gpu.as_ref().map_or(0, Gpu::waits)
    }

    /// What a GPU was handed so far; nothing on the CPU.
    pub fn handed(&self) -> Handed {
        self.gpu.as_ref().map_or_else(Handed::default, Gpu::handed)
    }

    /// What each kernel of a GPU took since this was last asked: [`GpuOptions::timed`].
    pub fn kernel_times(&self) -> Vec<KernelTime> {
        self.gpu.as_ref().map_or_else(Vec::new, Gpu::kernel_times)
    }

    /// Kernels of the GPU that are compiled by now; 0 on a CPU.
    pub fn n_kernels(&self) -> usize {
        self.gpu.as_ref().map_or(0, Gpu::n_kernels)
    }

    /// Whether the host's cores compute, also where they pass for a GPU.
    pub fn is_on_cores(&self) -> bool {
        self.gpu.as_ref().is_none_or(|gpu| gpu.facts().kind == GpuKind::Software)
    }

    /// Its name: that of a kernel table, or `vulkan:0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The point at which all is done that the GPU was told to do up to now, which it begins with; `None` on the CPU, where all is
    /// done at once.
    pub fn milestone(&self) -> Option<Milestone> {
        self.gpu.as_ref().map(Gpu::milestone)
    }

    /// Whether the GPU works so far.
    ///
    /// # Errors
    /// The GPU failed: what it computed is lost.
    pub fn check(&self) -> Result<(), GpuError> {
        self.gpu.as_ref().map_or(Ok(()), Gpu::check)
    }

    /// Waits for all that the GPU was told to do.
    ///
    /// # Errors
    /// The GPU failed, now or before: what it computed is lost.
    pub fn finish(&self) -> Result<(), GpuError> {
        self.gpu.as_ref().map_or(Ok(()), Gpu::finish)
    }
}

/// The number of what a GPU computes.
fn numerics_of(gpu: &Gpu) -> u32 {
    match gpu.has_fast_math() {
        true => fast_numerics(&gpu.facts().f16_identity()),
        false => NUMERICS_UNFUSED,
    }
}

/// Why a ubatch was ended, as the payload of a panic: no bug, but a lack of memory or a GPU that failed.
#[derive(Debug)]
pub struct GaveUp(pub String);

/// Ends the ubatch: whoever called the stage gets a [`GaveUp`] as the payload of a panic, of which nothing is printed.
fn give_up(what: &str, error: &GpuError) -> ! {
    let why = match error {
        GpuError::OutOfMemory { .. } => format!("no memory for {what}: {error}"),
        _ => error.to_string(),
    };
    std::panic::resume_unwind(Box::new(GaveUp(why)))
}

/// What an op gave that needs memory of its own.
///
/// # Panics
/// If the GPU had none: the stage ends with this as its reason.
fn with_room<T>(what: &str, given: Result<T, GpuError>) -> T {
    given.unwrap_or_else(|error| give_up(what, &error))
}

/// Where weights and states lie: with the host, or with an open GPU. What lies elsewhere is of no use to a device.
#[derive(Clone, Debug, Default)]
pub struct Home(Option<Gpu>);

impl Home {
    /// Has a GPU compile the kernels that `pass` runs, which computes nothing itself, and returns how many these were. On the CPU
    /// `pass` is not run.
    ///
    /// # Errors
    /// A kernel does not compile, or the GPU failed.
    pub fn rehearse(&self, pass: impl FnOnce()) -> Result<usize, GpuError> {
        self.0.as_ref().map_or(Ok(0), |gpu| gpu.rehearse(pass))
    }
}

impl PartialEq for Home {
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is(other),
            _ => false,
        }
    }
}

impl From<Compute> for Device {
    fn from(compute: Compute) -> Self {
        Self::of(Arc::new(compute))
    }
}

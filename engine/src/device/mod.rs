//! The device that a stage computes on: the one place that knows which memory rows lie in, and where an op runs.
//!
//! Blocks, stage and head call a [`Device`] and hold [`Rows`]. They know neither threads nor instruction sets. An op gives the
//! same bits on the host and on a GPU, for which the host then has the kernels [`unfused`]; with fast math, products of many rows
//! have others. Here no model, file or layer is known.

mod accelerator;
mod devices;
mod experts;
mod hardware;
mod kinds;
mod mapping;
mod name;
mod ops;
mod probe;
mod rows;
mod self_test;

use std::sync::Arc;

use accelerator::There;
use experts::on_host::Beside;

pub use crate::ops::{
    DeviceClass, DeviceFacts, DeviceOptions, Handed, KernelTime, MatrixUnits, Milestone,
};
pub use devices::{Devices, Listed, list};
pub use experts::changes::ExpertChange;
pub use experts::guests::{ExpertShares, GUESTS_AT_ONCE, Guests, RoutingShare, bytes_for_guests};
pub use experts::job::{ExpertWay, ExpertWays};
pub use experts::on_host::{Away, ExpertCounts, Sent};
pub use experts::use_counts::{ExpertLayer, ExpertUses, UseCounts};
pub use experts::visits::{VisitSpeeds, Visits};
pub use experts::{ExpertJob, ExpertMatrices};
pub use hardware::may_have_accelerators;
pub use kinds::{KINDS, gpus};
pub use mapping::Mapping;
pub use name::{DeviceName, DeviceWish, split_beside};
pub use ops::chosen_lists::Lists;
pub use ops::greatest::{FewValues, FoundGreatest};
pub use ops::index::{IndexOfMeans, IndexOver, PoolingBy};
pub use ops::products::product;
pub use ops::streams::Weighed;
pub use rows::fetched::Fetched;
pub use rows::memory::Memory;
pub use rows::values::{Values, ValuesMut};
pub use rows::{Rows, RowsMut, RowsPart, Scratch};

use crate::kernels::{
    Compute, DeviceError, DeviceFault, KernelError, Kernels, NUMERICS_UNFUSED, PackedMatrix,
    fast_numerics, unfused,
};
use crate::ops::{Accelerator, AcceleratorCounts, AcceleratorFacts, Fill};
use crate::quant::GgmlType;

/// The kernels and threads of a stage.
pub struct Device {
    compute: Arc<Compute>,
    /// Where it computes, if that is not the host.
    there: Option<There>,
    /// The host, for experts whose matrices shall not take the device's memory.
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
        Memory::new(self.there.as_ref(), len)
    }

    /// Memory for states that the host reads whatever computes, zero at first; `None` where there is not that much.
    pub fn host_memory<T: crate::ops::Element>(&self, len: usize) -> Option<Memory<T>> {
        Memory::new(None, len)
    }

    /// Where rows come from.
    pub fn scratch(&self) -> Scratch {
        Scratch::new(self.there.clone())
    }

    /// Packs `bytes`, the row-major weights `[rows, cols]` of a GGUF tensor of type `ty`, where products read them.
    ///
    /// # Errors The errors of [`PackedMatrix::pack`]; [`KernelError::Device`] where a device has no room for them.
    pub fn pack(
        &self,
        ty: GgmlType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<PackedMatrix, KernelError> {
        match &self.there {
            None => PackedMatrix::pack(&self.compute, ty, rows, cols, bytes),
            Some(there) => {
                let keep = |len, piece, fill: &mut Fill<'_>| there.keep(len, piece, fill);
                PackedMatrix::pack_with(&self.compute, ty, rows, cols, bytes, keep)
            }
        }
    }

    /// The CPU, with kernels and threads that others may use too.
    fn of(compute: Arc<Compute>) -> Self {
        let name = compute.kernels().name.to_owned();
        Self { compute, there: None, beside: None, name }
    }
}

impl Device {
    /// A device beside the host. An op that it has no kernel for runs on `threads` threads, on the same memory and
    /// with the same bits.
    ///
    /// # Errors
    /// [`KernelError::Threads`] when the system refuses a thread.
    pub fn beside_host(
        device: Arc<dyn Accelerator>,
        name: &str,
        threads: usize,
        cpus: Option<&[usize]>,
    ) -> Result<Self, KernelError> {
        let compute = Arc::new(Compute::new(unfused(), threads, cpus)?);
        let there = There::new(device);
        let beside = Some(Box::new(Beside::new(compute.clone(), &there)));
        Ok(Self { compute, there: Some(there), beside, name: name.to_owned() })
    }

    /// Where what this device keeps lies.
    pub fn home(&self) -> Home {
        Home(self.there.clone())
    }

    /// The host's kernels and threads: for what is made before a GPU gets it, such as packed weights and tables.
    pub fn host(&self) -> &Compute {
        &self.compute
    }

    /// The number of what it computes: [`NUMERICS`](crate::kernels::NUMERICS) and those beside it.
    pub fn numerics(&self) -> u32 {
        self.facts().map_or(self.compute.kernels().numerics, |facts| numerics_of(&facts))
    }

    /// Whether products of many rows have bits of their own on the device beside the host: [`DeviceOptions::fast_math`].
    pub fn has_fast_math(&self) -> bool {
        self.facts().is_some_and(|facts| facts.fast_units.is_some())
    }

    /// Whether the host computes all of it.
    pub fn is_host(&self) -> bool {
        self.there.is_none()
    }

    /// Counts of what the device did so far; zeros where the host computes.
    pub fn counts(&self) -> AcceleratorCounts {
        self.there.as_ref().map_or_else(AcceleratorCounts::default, |there| there.counts())
    }

    /// The time that each of the device's kernels took since this was last asked: [`DeviceOptions::timed`].
    /// [`DeviceOptions::timed`].
    pub fn kernel_times(&self) -> Vec<KernelTime> {
        self.there.as_ref().map_or_else(Vec::new, |there| there.kernel_times())
    }

    /// Whether the host's cores compute, also where they pass for a device.
    pub fn is_on_cores(&self) -> bool {
        self.facts().is_none_or(|facts| facts.is_on_cores)
    }

    /// The device's name: that of a kernel table, or `vulkan:0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The point at which all is done that it was told to do up to now, which it begins with; `None` where the host computes: all is
    /// done at once.
    pub fn milestone(&self) -> Option<Box<dyn Milestone>> {
        self.there.as_ref().map(|there| there.milestone())
    }

    /// Whether it works so far.
    ///
    /// # Errors
    /// The device failed: what it computed is lost.
    pub fn check(&self) -> Result<(), DeviceError> {
        self.there.as_ref().map_or(Ok(()), |there| there.check())
    }

    /// Waits for all that it was told to do.
    ///
    /// # Errors
    /// The device failed, now or before: what it computed is lost.
    pub fn finish(&self) -> Result<(), DeviceError> {
        self.there.as_ref().map_or(Ok(()), There::finish)
    }

    fn facts(&self) -> Option<AcceleratorFacts> {
        Some(self.there.as_ref()?.facts())
    }
}

/// The number of what a device computes.
fn numerics_of(facts: &AcceleratorFacts) -> u32 {
    facts.fast_units.as_ref().map_or(NUMERICS_UNFUSED, |units| fast_numerics(units))
}

/// Why a ubatch was ended, as the payload of a panic: no bug, but a lack of memory or a device that failed.
#[derive(Debug)]
pub struct GaveUp(pub String);

/// Ends the ubatch: whoever called the stage gets a [`GaveUp`] as the payload of a panic, of which nothing is printed.
fn give_up(what: &str, error: &DeviceError) -> ! {
    let why = match error.fault {
        DeviceFault::OutOfMemory => format!("no memory for {what}: {error}"),
        DeviceFault::Failed | DeviceFault::Unfit => error.to_string(),
    };
    std::panic::resume_unwind(Box::new(GaveUp(why)))
}

/// The result of an op that needs memory of its own.
///
/// # Panics
/// If the device had none: the stage ends with this as its reason.
fn with_room<T>(what: &str, given: Result<T, DeviceError>) -> T {
    given.unwrap_or_else(|error| give_up(what, &error))
}

/// Where weights and states lie: with the host, or with an open device. Values that lie elsewhere are of no use to a
/// device.
#[derive(Clone, Debug, Default)]
pub struct Home(Option<There>);

impl Home {
    /// Has a device make ready the kernels that `pass` runs, which computes nothing itself, and returns how many these were. On the
    /// host `pass` is not run.
    ///
    /// # Errors
    /// A kernel does not compile, or the device failed.
    pub fn rehearse(&self, pass: &mut dyn FnMut()) -> Result<usize, DeviceError> {
        self.0.as_ref().map_or(Ok(0), |there| there.rehearse(pass))
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

//! A device beside the host, as the engine knows it: memory of its own, and kernels for some of the ops. All that is particular to
//! one kind of device stands behind this trait, in a crate of its own.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use brigade_quant::{DeviceError, GgmlType};

use crate::op::Op;
use crate::place::Anywhere;
use crate::view::{Buffer, Part};

/// A device. It does what it is told in that order, at once or later; whoever reads its memory on the host waits for it without
/// having to ask. Errors stick: after the first, ops do nothing, and [`Accelerator::check`] tells it.
///
/// What is written out here is that of a device that does all at once, never fails and compiles nothing. All others have methods of
/// their own for that.
pub trait Accelerator: Any + Send + Sync {
    /// What it is and can do.
    fn facts(&self) -> AcceleratorFacts;

    /// Memory of `len` bytes: zero where it is to last, anything else where it was used before.
    ///
    /// # Errors
    /// There is no room.
    fn alloc(&self, len: usize, purpose: Purpose) -> Result<Box<dyn Buffer>, DeviceError>;

    /// Memory of `len` bytes for as long as a model lives. `fill` writes it, some whole pieces of `piece` bytes after the other.
    ///
    /// # Errors
    /// There is no room.
    fn keep(
        &self,
        len: usize,
        piece: usize,
        fill: &mut Fill<'_>,
    ) -> Result<Arc<dyn Buffer>, DeviceError>;

    /// What finds the matrices of all experts of a tensor in [`Op::ExpertProducts`]; `None`: there is no such op, and experts are
    /// multiplied one by one.
    ///
    /// # Errors
    /// There is no room.
    fn table(&self, _matrices: &Matrices) -> Result<Option<Table>, DeviceError> {
        Ok(None)
    }

    /// Whether it has a kernel for an op whose results lie with it. What it has not, the host computes: on copies, which it puts back.
    /// So every device has [`Op::Copy`], and [`Op::CopySlot`] and [`Op::Map`] by a constant, with which memory is made ready; it is
    /// not asked for these then.
    fn supports(&self, op: &Op<'_, Anywhere>) -> bool;

    /// Begins with an op that it supports. What is read and lies with the host is brought here.
    ///
    /// # Errors
    /// There is no room for memory that the op needs.
    ///
    /// # Panics
    /// If shapes disagree, or what is written lies elsewhere.
    fn run(&self, op: Op<'_, Anywhere>) -> Result<(), DeviceError>;

    /// Values for the host, on their way at once.
    ///
    /// # Errors
    /// There is no room for a copy.
    fn fetch(&self, wanted: ToFetch<'_>) -> Result<Box<dyn Fetch>, DeviceError>;

    /// Memory that the host fills again and again, each time for ops to read at once.
    fn inbox(&self) -> Box<dyn Inbox>;

    /// Begins with all that it was told.
    fn begin(&self) {}

    /// The point at which all is done that it was told up to now, which it begins with.
    fn milestone(&self) -> Box<dyn Milestone>;

    /// Whether it works so far.
    ///
    /// # Errors
    /// What failed first: what was computed is lost.
    fn check(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Makes ready what `pass` runs, which computes nothing itself, and returns how many kernels these were.
    ///
    /// # Errors
    /// A kernel does not compile, or the device failed.
    fn rehearse(&self, _pass: &mut dyn FnMut()) -> Result<usize, DeviceError> {
        Ok(0)
    }

    /// What it does now.
    fn state(&self) -> AcceleratorState {
        AcceleratorState { is_idle: true, is_rehearsing: false }
    }

    /// What it did so far.
    fn counts(&self) -> AcceleratorCounts {
        AcceleratorCounts::default()
    }

    /// What each kernel took since this was last asked, where that is measured.
    fn kernel_times(&self) -> Vec<KernelTime> {
        Vec::new()
    }
}

/// Writes a range of bytes of what is kept. It gets room for these alone.
pub type Fill<'a> = dyn FnMut(Range<usize>, &mut [u8]) + 'a;

/// What [`Accelerator::table`] makes.
pub type Table = Box<dyn Any + Send + Sync>;

/// The matrices of all experts of a tensor, `[rows, cols]` each.
pub struct Matrices {
    /// Their type.
    pub ty: GgmlType,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Where each lies, and what products with it are multiplied with.
    pub all: Vec<(Arc<dyn Buffer>, f32)>,
}

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Lives as long as a model.
    Weights,
    /// Lives as long as sequences: KV pages, recurrent states.
    States,
    /// Lives for a ubatch.
    Activations,
    /// Lives for a ubatch, and is read by the host: on a card of its own, in the host's memory.
    Results,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceleratorFacts {
    /// Its units' name where products of many rows have bits of their own; else all bits are those of the kernels `unfused`.
    pub fast_units: Option<String>,
    /// The host's cores pass for it.
    pub is_on_cores: bool,
    /// Most heads that an index of sparse attention may have.
    pub most_index_heads: usize,
}

/// What a device does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceleratorState {
    /// All that it was told was waited for, so that the host reads and writes at once.
    pub is_idle: bool,
    /// This thread's ops are noted only: [`Accelerator::rehearse`].
    pub is_rehearsing: bool,
}

/// What a device did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceleratorCounts {
    /// How often the host waited for it.
    pub waits: u64,
    /// What it was handed.
    pub handed: Handed,
    /// Kernels that are compiled.
    pub n_kernels: usize,
}

/// What a device was handed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// Runs of kernels.
    pub runs: u64,
    /// Batches of them.
    pub batches: u64,
    /// Batches that had to be recorded: the others do what one before them did, and were there.
    pub recorded: u64,
}

/// What runs of a kernel with equal constants and as many workgroups took.
#[derive(Clone, Debug)]
pub struct KernelTime {
    /// The kernel's name: that of its file.
    pub name: &'static str,
    /// Its specialization constants from 0 on.
    pub constants: Vec<u32>,
    /// Workgroups along each axis.
    pub groups: [u32; 3],
    /// How often it ran.
    pub runs: u32,
    /// From the end of the run before each to its own, added up.
    pub took: Duration,
}

/// What the host wants.
pub enum ToFetch<'a> {
    /// Copies of these, one behind the other.
    Copies(&'a [Part<'a>]),
    /// All of it; nobody else needs it.
    Whole(Box<dyn Buffer>),
}

/// Bytes on their way to the host. They are there when what the device was told up to now is done; it may be at work then.
pub trait Fetch: Send + Sync {
    /// They: waits for them. Where the device failed they are anything, and [`Accelerator::check`] says so.
    fn bytes(&self) -> &[u8];
}

/// Memory that the host fills again and again.
pub trait Inbox: Send {
    /// Fills it with `bytes`, and has `read` tell the device the ops that read them. It waits only for those that read what was here
    /// before.
    ///
    /// # Errors
    /// There is no room.
    fn put(&mut self, bytes: &[u8], read: &mut dyn FnMut(Part<'_>)) -> Result<(), DeviceError>;
}

/// A point in a device's work.
pub trait Milestone: Send {
    /// Waits for so long at most; whether it is reached. A device that failed reaches every point: [`Milestone::wait`] tells.
    fn is_reached_within(&mut self, within: Duration) -> bool;

    /// Waits until it is reached.
    ///
    /// # Errors
    /// The first error that there was, in this or anything before.
    fn wait(self: Box<Self>) -> Result<(), DeviceError>;
}

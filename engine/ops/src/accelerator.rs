//! An accelerator beside the host, as the engine knows it: a device with memory of its own and kernels for some of the
//! ops. Code for one kind of device stands behind this trait, in a crate of its own.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use brigade_quant::{DeviceError, GgmlType};

use crate::op::Op;
use crate::place::Anywhere;
use crate::view::{Buffer, Part};

/// A device with memory of its own. It executes ops in the order in which it is told them, at once or later. A read of
/// its memory from the host waits for them by itself. Errors stick: after the first, ops do nothing, and
/// [`Accelerator::check`] returns it.
///
/// The default methods fit a device that runs every op at once, never fails and compiles nothing. Other devices have
/// methods of their own.
pub trait Accelerator: Any + Send + Sync {
    /// The device's fixed properties.
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

    /// Makes the table that [`Op::ExpertProducts`] reads, of the matrices of all experts of a tensor. `None`: the
    /// device has no such op, and experts are multiplied one by one.
    ///
    /// # Errors
    /// There is no room.
    fn table(&self, _matrices: &Matrices) -> Result<Option<Table>, DeviceError> {
        Ok(None)
    }

    /// Whether the device has a kernel for an op whose results lie with it. The host computes the other ops on copies,
    /// which it puts back. So every device has [`Op::Copy`], and [`Op::CopySlot`] and [`Op::Map`] by a constant, with
    /// which memory is made ready; it is not asked for these then.
    fn supports(&self, op: &Op<'_, Anywhere>) -> bool;

    /// Begins with an op that the device supports. Operands that lie with the host are brought to it.
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
    /// # Errors The first failure. What was computed is lost.
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

    /// Whether the device is idle, and whether it only notes ops.
    fn state(&self) -> AcceleratorState {
        AcceleratorState { is_idle: true, is_rehearsing: false }
    }

    /// Counts since the device was opened.
    fn counts(&self) -> AcceleratorCounts {
        AcceleratorCounts::default()
    }

    /// Time that each kernel took since the last call. Empty where kernels are not timed.
    fn kernel_times(&self) -> Vec<KernelTime> {
        Vec::new()
    }
}

/// Writes a range of bytes of what is kept. It gets room for these alone.
pub type Fill<'a> = dyn FnMut(Range<usize>, &mut [u8]) + 'a;

/// The experts' matrices as [`Op::ExpertProducts`] finds them, made by [`Accelerator::table`].
pub type Table = Box<dyn Any + Send + Sync>;

/// The matrices of all experts of a tensor, `[rows, cols]` each.
pub struct Matrices {
    /// Type of the weights.
    pub ty: GgmlType,
    /// Output features of each matrix.
    pub rows: usize,
    /// Input features of each matrix.
    pub cols: usize,
    /// For each expert its packed matrix, and the factor on products with it.
    pub all: Vec<(Arc<dyn Buffer>, f32)>,
}

/// The use of a piece of device memory.
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

/// A device's fixed properties.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceleratorFacts {
    /// Name of the matrix units, where they compute products of many rows with bits of their own. `None`: all bits are
    /// those of the kernels `unfused`.
    pub fast_units: Option<String>,
    /// The host's cores pass for it.
    pub is_on_cores: bool,
    /// Most heads that an index of sparse attention may have.
    pub most_index_heads: usize,
    /// Whether weights that come to it come while it computes.
    pub sends_beside: bool,
}

/// Whether a device has work at present, and whether it only notes ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcceleratorState {
    /// All that it was told was waited for, so that the host reads and writes at once.
    pub is_idle: bool,
    /// Whether this thread's ops are noted only: [`Accelerator::rehearse`]. [`Accelerator::rehearse`].
    pub is_rehearsing: bool,
}

/// Counts of a device since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceleratorCounts {
    /// Times that the host waited for the device.
    pub waits: u64,
    /// Work that the host handed to it.
    pub handed: Handed,
    /// Kernels that are compiled.
    pub n_kernels: usize,
}

/// Work that the host handed to a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Handed {
    /// Dispatches of kernels.
    pub runs: u64,
    /// Batches in which the dispatches were submitted.
    pub batches: u64,
    /// Batches that had to be recorded. The others are equal to an earlier batch and use its recording.
    pub recorded: u64,
}

/// Time of all runs of a kernel with equal constants and as many workgroups.
#[derive(Clone, Debug)]
pub struct KernelTime {
    /// The kernel's name: that of its file.
    pub name: &'static str,
    /// Specialization constants from number 0 on.
    pub constants: Vec<u32>,
    /// Workgroups along each axis.
    pub groups: [u32; 3],
    /// Runs that were measured.
    pub runs: u32,
    /// Sum of the times from the end of the run before each to its own end.
    pub took: Duration,
}

/// Values of a device that the host asks for.
pub enum ToFetch<'a> {
    /// Copies of these parts, one behind the other.
    Copies(&'a [Part<'a>]),
    /// The whole buffer, which has no other user.
    Whole(Box<dyn Buffer>),
}

/// Bytes on their way to the host. They arrive when the device has done all that it was told up to now. It may go on
/// with other work meanwhile.
pub trait Fetch: Send + Sync {
    /// Waits for the bytes and returns them. After an error of the device their values mean nothing, and
    /// [`Accelerator::check`] returns the error.
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

//! A device whose memory only its own copies can read. It computes with the host's kernels, so that there is one
//! answer, but on operands that it had to copy from its memory first. Code that reads its memory past its calls sees
//! nonsense.

mod carry;
mod experts;
mod list;
mod memory;
mod work;

use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brigade_kernels::Compute;
use brigade_kernels_tables::unfused;
use brigade_ops::{
    Accelerator, AcceleratorFacts, Anywhere, Buffer, Fetch, Fill, Inbox, Matrices, Milestone, Op,
    Purpose, Table, ToFetch,
};
use brigade_quant::{DeviceError, KernelError};

pub use list::{OPS, WEIGHTS};

use carry::{Lent, Near, ToFar, ToNear};
use experts::FarTable;
use memory::{FarBuffer, FarView};
use work::{Brought, Done, FarInbox};

/// A device with far memory.
pub struct Far {
    compute: Compute,
    /// Ops that it lacks, of those that it usually has.
    lacks: Vec<&'static str>,
    counts: Mutex<FarCounts>,
    reads: Arc<AtomicU64>,
}

/// Counts of the ops and requests that it got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FarCounts {
    /// Ops that it ran, by name.
    pub ran: BTreeMap<&'static str, usize>,
    /// Ops that it has no kernel for, by name: they fall back to the host.
    pub fell_back: BTreeMap<&'static str, usize>,
    /// Number of times that the host asked for a copy of its memory and waited.
    pub reads: u64,
}

impl FarCounts {
    /// Ops that it ran.
    pub fn n_ran(&self) -> usize {
        self.ran.values().sum()
    }

    /// Ops that it has no kernel for.
    pub fn n_fell_back(&self) -> usize {
        self.fell_back.values().sum()
    }
}

impl Far {
    /// One that computes on the calling thread, without the ops of these names.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn without(lacks: &[&'static str]) -> Result<Self, KernelError> {
        let compute = Compute::new(unfused(), 1, None)?;
        let lacks = lacks.to_vec();
        Ok(Self { compute, lacks, counts: Mutex::default(), reads: Arc::default() })
    }

    /// Counts since the last call.
    pub fn take_counts(&self) -> FarCounts {
        let reads = self.reads.swap(0, Ordering::Relaxed);
        FarCounts { reads, ..std::mem::take(&mut *self.counts()) }
    }

    fn counts(&self) -> MutexGuard<'_, FarCounts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Accelerator for Far {
    fn facts(&self) -> AcceleratorFacts {
        AcceleratorFacts::default()
    }

    fn alloc(&self, len: usize, _: Purpose) -> Result<Box<dyn Buffer>, DeviceError> {
        Ok(Box::new(FarBuffer::zeros(len, &self.reads)))
    }

    fn keep(
        &self,
        len: usize,
        piece: usize,
        fill: &mut Fill<'_>,
    ) -> Result<Arc<dyn Buffer>, DeviceError> {
        let mut buffer = FarBuffer::zeros(len, &self.reads);
        let mut bytes = vec![0; piece];
        for at in (0..len).step_by(piece.max(1)) {
            let range: Range<usize> = at..at + piece;
            fill(range, &mut bytes);
            buffer.write(at, &bytes);
        }
        Ok(Arc::new(buffer))
    }

    fn table(&self, matrices: &Matrices) -> Result<Option<Table>, DeviceError> {
        let has = list::WEIGHTS.contains(&matrices.ty) && !self.lacks.contains(&"ExpertProducts");
        Ok(has.then(|| -> Table { Box::new(FarTable::new(matrices)) }))
    }

    fn supports(&self, op: &Op<'_, Anywhere>) -> bool {
        let has = list::has(op) && !self.lacks.contains(&op.name());
        if !has {
            *self.counts().fell_back.entry(op.name()).or_default() += 1;
        }
        has
    }

    fn run(&self, op: Op<'_, Anywhere>) -> Result<(), DeviceError> {
        *self.counts().ran.entry(op.name()).or_default() += 1;
        let (lent, mut near) = (Lent::default(), Near::default());
        let op = op.carried(&mut ToFar::new(&lent, &self.reads));
        let mut to_near = ToNear::new(&mut near);
        experts::run(&self.compute, &self.reads, op.carried(&mut to_near));
        let written = to_near.into_written();
        near.put_back(written);
        Ok(())
    }

    fn fetch(&self, wanted: ToFetch<'_>) -> Result<Box<dyn Fetch>, DeviceError> {
        let words = match wanted {
            ToFetch::Copies(parts) => {
                parts.iter().flat_map(|part| FarView::of(*part).decode()).collect()
            }
            ToFetch::Whole(buffer) => {
                let buffer: Box<dyn Any> = buffer;
                let buffer: Box<FarBuffer> = buffer.downcast().expect("a buffer of far memory");
                buffer.view().decode()
            }
        };
        Ok(Box::new(Brought(words)))
    }

    fn inbox(&self) -> Box<dyn Inbox> {
        Box::new(FarInbox(self.reads.clone()))
    }

    fn milestone(&self) -> Box<dyn Milestone> {
        Box::new(Done)
    }
}

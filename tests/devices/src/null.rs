//! A device that computes nothing, and remembers what it was told.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use brigade_ops::{
    Accelerator, AcceleratorFacts, Anywhere, Buffer, Fetch, Fill, Inbox, Milestone, Op, Part,
    Purpose, ToFetch,
};
use brigade_quant::DeviceError;

/// The names of the ops that it was told, in their order.
#[derive(Default)]
pub struct Null(Mutex<Vec<&'static str>>);

impl Null {
    /// The names of the ops that it was told since this was last asked.
    pub fn told(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Bytes that are all zero.
#[derive(Debug)]
struct Zeros(Vec<u64>, usize);

fn zeros(len: usize) -> Zeros {
    Zeros(vec![0; len.div_ceil(8)], len)
}

impl Buffer for Zeros {
    fn len(&self) -> usize {
        self.1
    }
    fn address(&self) -> u64 {
        self.0.as_ptr() as u64
    }
    fn read(&self, bytes: Range<usize>, out: &mut Vec<u8>) -> Result<(), DeviceError> {
        out.resize(out.len() + bytes.len(), 0);
        Ok(())
    }
    fn write(&mut self, _: usize, _: &[u8]) {}
}

impl Fetch for Zeros {
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..self.1]
    }
}

impl Inbox for Zeros {
    fn put(&mut self, bytes: &[u8], read: &mut dyn FnMut(Part<'_>)) -> Result<(), DeviceError> {
        read(Part::of(&zeros(bytes.len()), 0..bytes.len()));
        Ok(())
    }
}

/// A transfer or a point that is always complete.
struct Done;

impl Milestone for Done {
    fn is_reached_within(&mut self, _: Duration) -> bool {
        true
    }
    fn wait(self: Box<Self>) -> Result<(), DeviceError> {
        Ok(())
    }
}

impl Accelerator for Null {
    fn facts(&self) -> AcceleratorFacts {
        AcceleratorFacts { most_index_heads: usize::MAX, ..AcceleratorFacts::default() }
    }
    fn alloc(&self, len: usize, _: Purpose) -> Result<Box<dyn Buffer>, DeviceError> {
        Ok(Box::new(zeros(len)))
    }
    fn keep(&self, len: usize, _: usize, _: &mut Fill<'_>) -> Result<Arc<dyn Buffer>, DeviceError> {
        Ok(Arc::new(zeros(len)))
    }
    fn supports(&self, _: &Op<'_, Anywhere>) -> bool {
        true
    }
    fn run(&self, op: Op<'_, Anywhere>) -> Result<(), DeviceError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(op.name());
        Ok(())
    }
    fn fetch(&self, wanted: ToFetch<'_>) -> Result<Box<dyn Fetch>, DeviceError> {
        Ok(Box::new(zeros(match wanted {
            ToFetch::Copies(parts) => parts.iter().map(|part| part.place().1.len()).sum(),
            ToFetch::Whole(buffer) => buffer.len(),
        })))
    }
    fn inbox(&self) -> Box<dyn Inbox> {
        Box::new(zeros(0))
    }
    fn milestone(&self) -> Box<dyn Milestone> {
        Box::new(Done)
    }
}

//! A GPU as the engine knows it: one of its devices.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use brigade_ops::{
    Accelerator, AcceleratorCounts, AcceleratorFacts, AcceleratorState, Anywhere, Buffer,
    DeviceClass, Fill, KernelTime, Matrices, Op, Part, Purpose, Table, ToFetch,
};
use brigade_quant::{DeviceError, DeviceFault};

use crate::device::Gpu;
use crate::error::GpuError;
use crate::operands::{ToGpu, span_of};
use crate::ops::MAX_INDEX_HEADS;
use crate::transfer::buffer::GpuBuffer;
use crate::transfer::inbox::Inbox;
use crate::transfer::milestone::{Fetch, Milestone};

impl From<GpuError> for DeviceError {
    fn from(error: GpuError) -> Self {
        let fault = match &error {
            GpuError::OutOfMemory { .. } => DeviceFault::OutOfMemory,
            // The next attempt opens the device anew.
            GpuError::Lost | GpuError::TimedOut { .. } | GpuError::Vulkan { .. } => {
                DeviceFault::Failed
            }
            _ => DeviceFault::Unfit,
        };
        Self { fault, text: error.to_string() }
    }
}

impl Accelerator for Gpu {
    fn facts(&self) -> AcceleratorFacts {
        let facts = Gpu::facts(self);
        AcceleratorFacts {
            fast_units: self.has_fast_math().then(|| facts.f16_identity()),
            is_on_cores: facts.kind == DeviceClass::Software,
            most_index_heads: MAX_INDEX_HEADS,
            sends_beside: self.has_transfers(),
        }
    }

    fn alloc(&self, len: usize, purpose: Purpose) -> Result<Box<dyn Buffer>, DeviceError> {
        Ok(Box::new(match purpose {
            // What is allocated and not kept: weights that come and go.
            Purpose::Weights => self.place(len)?,
            Purpose::States | Purpose::Activations | Purpose::Results => {
                self.buffer(len, purpose)?
            }
        }))
    }

    fn keep(
        &self,
        len: usize,
        piece: usize,
        fill: &mut Fill<'_>,
    ) -> Result<Arc<dyn Buffer>, DeviceError> {
        Ok(Arc::new(self.keep_with(len, piece, fill)?))
    }

    fn table(&self, matrices: &Matrices) -> Result<Option<Table>, DeviceError> {
        let Matrices { ty, rows, cols, all } = matrices;
        let placed = |(memory, scale): &(Arc<dyn Buffer>, f32)| {
            let memory: Arc<dyn Any + Send + Sync> = memory.clone();
            Some((memory.downcast::<GpuBuffer>().ok()?, *scale))
        };
        let Some(placed) = all.iter().map(placed).collect() else { return Ok(None) };
        Ok(Some(Box::new(self.expert_table((*ty).into(), *rows, *cols, placed)?)))
    }

    fn supports(&self, op: &Op<'_, Anywhere>) -> bool {
        Gpu::supports(self, op)
    }

    fn run(&self, op: Op<'_, Anywhere>) -> Result<(), DeviceError> {
        let mut to = ToGpu::of(self);
        let op = op.carried(&mut to);
        to.places.iter().for_each(|place| place.come_behind_fills());
        let result = Gpu::run(self, op);
        to.places.iter().for_each(|place| place.note_use());
        Ok(result?)
    }

    fn fetch(&self, wanted: ToFetch<'_>) -> Result<Box<dyn brigade_ops::Fetch>, DeviceError> {
        let fetch = match wanted {
            ToFetch::Copies(parts) => {
                let spans: Vec<_> = parts.iter().copied().map(span_of).collect();
                self.fetch_all(&spans)?
            }
            ToFetch::Whole(buffer) => {
                let buffer: Box<dyn Any> = buffer;
                let buffer = buffer.downcast::<GpuBuffer>().expect("a buffer of this device");
                Fetch::written(*buffer)
            }
        };
        Ok(Box::new(fetch))
    }

    fn inbox(&self) -> Box<dyn brigade_ops::Inbox> {
        Box::new(Inbox::of(self))
    }

    fn begin(&self) {
        Gpu::begin(self);
    }

    fn milestone(&self) -> Box<dyn brigade_ops::Milestone> {
        Box::new(Gpu::milestone(self))
    }

    fn check(&self) -> Result<(), DeviceError> {
        Ok(Gpu::check(self)?)
    }

    fn rehearse(&self, pass: &mut dyn FnMut()) -> Result<usize, DeviceError> {
        Ok(Gpu::rehearse(self, pass)?)
    }

    fn state(&self) -> AcceleratorState {
        AcceleratorState { is_idle: self.is_idle(), is_rehearsing: self.is_rehearsing() }
    }

    fn counts(&self) -> AcceleratorCounts {
        let (waits, handed) = (self.waits(), self.handed());
        AcceleratorCounts { waits, handed, n_kernels: self.n_kernels() }
    }

    fn kernel_times(&self) -> Vec<KernelTime> {
        Gpu::kernel_times(self)
    }
}

impl brigade_ops::Fetch for Fetch {
    fn bytes(&self) -> &[u8] {
        Fetch::bytes(self)
    }
}

impl brigade_ops::Inbox for Inbox {
    fn put(&mut self, bytes: &[u8], read: &mut dyn FnMut(Part<'_>)) -> Result<(), DeviceError> {
        Ok(Inbox::put(self, bytes, read)?)
    }
}

impl brigade_ops::Milestone for Milestone {
    fn is_reached_within(&mut self, within: Duration) -> bool {
        Milestone::is_reached_within(self, within)
    }

    fn wait(self: Box<Self>) -> Result<(), DeviceError> {
        Ok(Milestone::wait(*self)?)
    }
}

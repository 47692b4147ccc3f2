//! Weights with a GPU, as its ops take them, and a GPU's refusals as the kernels' errors. It gets vectors when they are first
//! asked for, and matrices when they are packed. The crate of kernels knows none of this: it keeps what it is given.

use std::ops::Range;
use std::sync::Arc;

use brigade_gpu::{ConvSpans, Gpu, GpuBuffer, GpuError, MambaSpans, Span, SsdSpans, Wkv7Spans};

use super::values::Values;
use crate::kernels::{
    Compute, Conv, DeviceError, DeviceFault, DeviceMemory, KernelError, MambaScan, PackedMatrix,
    Ssd, Wkv7Weights,
};
use crate::quant::GgmlType;

/// A GPU's refusal as the kernels' error, sorted by what the caller can do.
pub fn refused(error: GpuError) -> KernelError {
    KernelError::Device(DeviceError { fault: fault(&error), text: error.to_string() })
}

/// What the caller can do about a GPU's refusal.
fn fault(error: &GpuError) -> DeviceFault {
    match error {
        GpuError::OutOfMemory { .. } => DeviceFault::OutOfMemory,
        // The next attempt opens the device anew.
        GpuError::Lost | GpuError::TimedOut { .. } | GpuError::Vulkan { .. } => DeviceFault::Failed,
        _ => DeviceFault::Unfit,
    }
}

/// Packed weights in a GPU's buffer.
struct Packed(Arc<GpuBuffer>);

impl DeviceMemory for Packed {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        Arc::get_mut(&mut self.0).expect("nobody writes what is shared").bytes_mut()
    }
}

/// [`PackedMatrix::pack`] to a GPU's memory.
///
/// # Errors
/// As there, and [`KernelError::Device`] where the GPU has not that much memory.
pub fn pack_with_gpu(
    compute: &Compute,
    gpu: &Gpu,
    shape: (GgmlType, usize, usize),
    bytes: &[u8],
) -> Result<PackedMatrix, KernelError> {
    PackedMatrix::pack_with(compute, shape, bytes, |sizes, fill| {
        let mut fill = |range: Range<usize>, out: &mut [u8]| fill(range, out);
        match gpu.keep_with(sizes, &mut fill) {
            Ok(buffer) => Ok(Arc::new(Packed(Arc::new(buffer))) as Arc<dyn DeviceMemory>),
            Err(error) => Err(DeviceError { fault: fault(&error), text: error.to_string() }),
        }
    })
}

/// A matrix of the host's memory as one that a GPU has: its bytes are copied to `place`.
pub(super) fn copy_at(matrix: &PackedMatrix, place: &Arc<GpuBuffer>) -> PackedMatrix {
    matrix.copied_to(Arc::new(Packed(place.clone())))
}

/// The buffer that a matrix lies in, if a GPU has it.
pub fn buffer_of(matrix: &PackedMatrix) -> Option<&Arc<GpuBuffer>> {
    let memory: &dyn std::any::Any = matrix.with_device()?;
    memory.downcast_ref::<Packed>().map(|packed| &packed.0)
}

/// A matrix's panels, if a GPU has them.
pub(super) fn span_of(matrix: &PackedMatrix) -> Option<Span<'_>> {
    Some(buffer_of(matrix)?.span())
}

/// What a GPU may have a copy of.
pub(super) trait OnGpu {
    /// The copy as ops take it.
    type Spans<'a>
    where
        Self: 'a;

    /// The same copy always, for ops that are recorded from now on. The GPU gets it when it is first asked for.
    ///
    /// # Panics
    /// If it has no memory left.
    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> Self::Spans<'a>;
}

impl OnGpu for Conv {
    type Spans<'a> = ConvSpans<'a>;
    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> ConvSpans<'a> {
        ConvSpans {
            taps: self.taps,
            channels: self.channels,
            weight: self.weight.on_gpu(gpu),
            bias: self.bias.on_gpu(gpu),
            silu: self.silu,
        }
    }
}

impl OnGpu for Ssd {
    type Spans<'a> = SsdSpans<'a>;
    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> SsdSpans<'a> {
        SsdSpans {
            shape: self.shape,
            a: self.a.on_gpu(gpu),
            d: self.d.on_gpu(gpu),
            dt_bias: self.dt_bias.on_gpu(gpu),
        }
    }
}

impl OnGpu for MambaScan {
    type Spans<'a> = MambaSpans<'a>;
    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> MambaSpans<'a> {
        MambaSpans {
            channels: self.channels,
            n_state: self.n_state,
            a: self.a.on_gpu(gpu),
            dt_bias: self.dt_bias.on_gpu(gpu),
            d: self.d.on_gpu(gpu),
        }
    }
}

impl OnGpu for Wkv7Weights {
    type Spans<'a> = Wkv7Spans<'a>;
    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> Wkv7Spans<'a> {
        Wkv7Spans {
            w0: self.w0.on_gpu(gpu),
            a0: self.a0.on_gpu(gpu),
            k_k: self.k_k.on_gpu(gpu),
            k_a: self.k_a.on_gpu(gpu),
        }
    }
}

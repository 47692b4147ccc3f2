//! Weights with a GPU, as its ops take them, and a GPU's refusals as the kernels' errors. It gets
//! matrices when they are packed. The crate of kernels knows none of this: it keeps what it is given.

use std::ops::Range;
use std::sync::Arc;

use brigade_gpu::{Gpu, GpuBuffer, GpuError, Span};

use crate::kernels::{Compute, DeviceError, DeviceFault, DeviceMemory, KernelError, PackedMatrix};
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

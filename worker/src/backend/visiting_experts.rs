//! Copies of the host's experts on the GPU for ubatches of many rows: when they are sent, and the room that they need
//! there.

use brigade_engine::device::{Device, VisitSpeeds, Visits};
use brigade_engine::kernels::{KernelError, PackedMatrix};
use brigade_gguf::TensorInfo;

use super::measure::{Sending, Speeds, sent_per_second};

/// Most matrices of an expert in a layer: three projections, and three of what groups of experts share.
pub const MATRICES: usize = 6;

/// The part of a tensor's name that marks a fused gate and up projection.
const FUSED: &str = "ffn_gate_up_";

/// Bytes of each matrix of one expert that a tensor of experts has, packed.
///
/// # Errors
/// The kernels have none for its type.
pub fn matrices_of(tensor: &TensorInfo) -> Result<Vec<u64>, KernelError> {
    if tensor.n_dims < 3 {
        return Ok(Vec::new());
    }
    let n = if tensor.name.contains(FUSED) { 2 } else { 1 };
    let bytes = PackedMatrix::packed_bytes(tensor.ty, tensor.ne[1] / n, tensor.ne[0])?;
    Ok(vec![bytes; n])
}

/// When experts are sent to this device, whose speeds and whose host's were measured. Where the host's cores pass for a GPU, never.
///
/// # Errors
/// The device failed, or has no memory for a copy.
pub fn visits(device: &Device, own: Speeds, host: Speeds) -> Result<Visits, KernelError> {
    if device.is_on_cores() {
        return Ok(Visits::Never);
    }
    let gb_per_second = sent_per_second(device)? / 1e9;
    Ok(visits_at(Sending { gb_per_second, is_beside: device.sends_beside() }, own, host))
}

/// When experts are sent to a device by this way. Their weights are taken to be of few bits, as those of large models are.
pub fn visits_at(sent: Sending, own: Speeds, host: Speeds) -> Visits {
    if sent.gb_per_second <= 0.0 {
        return Visits::Never;
    }
    let per_second = |giga: f64| giga * 1e9;
    Visits::Measured(VisitSpeeds {
        sent_bytes: per_second(sent.gb_per_second),
        sent_beside: sent.is_beside,
        gpu_operations: per_second(own.gop_per_second.nibble),
        host_bytes: per_second(host.gb_per_second),
        host_operations: per_second(host.gop_per_second.nibble),
    })
}

#[cfg(test)]
mod tests {
    use brigade_engine::device::bytes_for_guests;

    #[test]
    fn room_is_counted_by_the_sizes_of_matrices() {
        let layers: [&[u64]; 3] = [&[10, 10, 30], &[10, 10, 10], &[]];
        assert_eq!(bytes_for_guests(layers), 8 * (3 * 10 + 30));
        assert_eq!(bytes_for_guests([]), 0);
    }
}

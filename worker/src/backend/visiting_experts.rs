//! Copies of the host's experts on the GPU for ubatches of many rows: when they are sent, and the room that they need
//! there.

use std::ops::Range;

use brigade_engine::device::{Device, VisitSpeeds, Visits};
use brigade_engine::kernels::{KernelError, PackedMatrix};
use brigade_gguf::TensorInfo;
use brigade_gguf::adapters::of_model;
use brigade_spec::{Described, ModelSpec};

use super::measure::{Sending, Speeds, sent_per_second};
use super::product_class::{ByClass, ProductClass};

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

/// The way from the host's memory to a GPU, and the speeds at its two ends.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The way itself.
    pub sent: Sending,
    /// Speeds of the GPU.
    pub gpu: Speeds,
    /// Speeds of the host.
    pub host: Speeds,
}

impl Way {
    /// Measures the way to this device. `None` where nothing is won by it: the host's cores pass for a GPU.
    ///
    /// # Errors
    /// The device failed, or has no memory for a copy.
    pub fn measure(
        device: &Device,
        gpu: Speeds,
        host: Speeds,
    ) -> Result<Option<Self>, KernelError> {
        if device.is_on_cores() {
            return Ok(None);
        }
        let gb_per_second = sent_per_second(device)? / 1e9;
        let sent = Sending { gb_per_second, is_beside: device.sends_beside() };
        Ok(Self { sent, gpu, host }.if_open())
    }

    /// This way, unless nothing comes through it.
    pub fn if_open(self) -> Option<Self> {
        (self.sent.gb_per_second > 0.0).then_some(self)
    }

    /// When experts of these layers are sent by this way, where those of the first `host_experts` layers lie with the host.
    pub fn visits(
        &self,
        model: &Described<'_>,
        layers: &Range<usize>,
        host_experts: u32,
    ) -> Visits {
        let tensors = model.model.tensors().iter();
        let elements = tensors
            .filter(|tensor| is_beside(&model.spec, layers, tensor, host_experts))
            .map(|tensor| ByClass::only(ProductClass::of(tensor.ty), tensor.n_elems() as u64));
        self.visits_of(elements.sum())
    }

    /// When experts with so many elements of each class are sent.
    fn visits_of(&self, elements: ByClass<u64>) -> Visits {
        let per_second = |giga: f64| giga * 1e9;
        let operations = |speeds: &Speeds| per_second(elements.mean_speed(speeds.gop_per_second));
        Visits::Measured(VisitSpeeds {
            sent_bytes: per_second(self.sent.gb_per_second),
            sent_beside: self.sent.is_beside,
            gpu_operations: operations(&self.gpu),
            host_bytes: per_second(self.host.gb_per_second),
            host_operations: operations(&self.host),
        })
    }
}

/// Whether a tensor of the stage's layers is of experts that lie with the host, as those of the first `host_experts` layers do.
pub fn is_beside(
    spec: &ModelSpec,
    layers: &Range<usize>,
    tensor: &TensorInfo,
    host_experts: u32,
) -> bool {
    let Some(in_file) = brigade_spec::layer_of(&tensor.name) else { return false };
    let mut mine = layers.clone().filter(|layer| spec.in_file(*layer) == in_file);
    in_file < host_experts as usize
        && mine.any(|layer| spec.layers[layer].is_of_experts(of_model(&tensor.name).0))
}

#[cfg(test)]
mod tests {
    use brigade_engine::device::bytes_for_guests;

    use super::*;

    #[test]
    fn room_is_counted_by_the_sizes_of_matrices() {
        let layers: [&[u64]; 3] = [&[10, 10, 30], &[10, 10, 10], &[]];
        assert_eq!(bytes_for_guests(layers), 8 * (3 * 10 + 30));
        assert_eq!(bytes_for_guests([]), 0);
    }

    #[test]
    fn experts_are_sent_by_the_speeds_of_their_own_classes() {
        let speeds = |nibble, halves| Speeds {
            gb_per_second: 50.0,
            gop_per_second: ByClass { nibble, halves, byte: 1.0, float: 1.0 },
        };
        let sent = Sending { gb_per_second: 10.0, is_beside: true };
        let way = Way { sent, gpu: speeds(900.0, 300.0), host: speeds(60.0, 10.0) };
        let operations = |elements| match way.visits_of(elements) {
            Visits::Measured(speeds) => [speeds.gpu_operations, speeds.host_operations],
            other => panic!("{other:?}"),
        };
        assert_eq!(operations(ByClass::only(ProductClass::Nibble, 7)), [900e9, 60e9]);
        assert_eq!(operations(ByClass::only(ProductClass::Halves, 7)), [300e9, 10e9]);
        // Two parts at 60 and one at 10 take 2/60 + 1/10 of a second.
        let mixed = ByClass { nibble: 2, halves: 1, ..ByClass::default() };
        let [_, host] = operations(mixed);
        assert!((host - 22.5e9).abs() < 1.0, "{host}");
        assert!(Way { sent: Sending::default(), ..way }.if_open().is_none());
    }
}

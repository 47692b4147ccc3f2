//! Packing of matrices for the stage's device, and where routed experts lie beside it.

use crate::device::Device;
use crate::kernels::PackedMatrix;
use crate::quant::GgmlType;
use crate::spec::ModelError;

/// Memory for routed experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpertsPlace {
    /// First layer of the file whose experts may take the memory of the device that computes the rest.
    beside_before: usize,
}

impl ExpertsPlace {
    /// Experts of layers before `beside_before` lie elsewhere than the rest, if the device has such a place.
    ///
    /// # Errors
    /// The device's bits would depend on where they are.
    pub(crate) fn new(device: &Device, beside_before: u32) -> Result<Self, ModelError> {
        let beside_before = if device.has_beside() { beside_before as usize } else { 0 };
        if beside_before > 0 && device.has_fast_math() {
            return Err(ModelError::Unsupported(
                "experts in the host's memory beside a GPU with fast math, which would compute other bits than they: start \
                 without --fast-math, or with --experts device"
                    .to_owned(),
            ));
        }
        Ok(Self { beside_before })
    }

    /// Whether experts of this layer of the file are put elsewhere.
    pub(crate) fn is_beside(self, layer: usize) -> bool {
        layer < self.beside_before
    }
}

/// Packs matrices for one device, each where it shall lie.
pub(super) struct Packer<'a> {
    device: &'a Device,
    pub(super) experts: ExpertsPlace,
    /// Layer of the file to which the next matrices belong. What comes before the layers has none.
    pub(super) layer: Option<usize>,
    /// Whether what is packed are experts.
    pub(super) is_of_experts: bool,
}

impl<'a> Packer<'a> {
    /// Packs for `device`, experts too.
    pub(super) fn new(device: &'a Device) -> Self {
        Self { device, experts: ExpertsPlace::default(), layer: None, is_of_experts: false }
    }

    /// The device that the matrices are for.
    pub(super) fn device(&self) -> &'a Device {
        self.device
    }

    /// A matrix `[rows, cols]` from the bytes of a file.
    ///
    /// # Errors
    /// The device lacks the type or the memory, or the bytes are not that many.
    pub(super) fn pack(
        &self,
        ty: GgmlType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<PackedMatrix, ModelError> {
        let is_beside =
            self.is_of_experts && self.layer.is_some_and(|layer| self.experts.is_beside(layer));
        Ok(if is_beside {
            self.device.pack_beside(ty, rows, cols, bytes)?
        } else {
            self.device.pack(ty, rows, cols, bytes)?
        })
    }
}

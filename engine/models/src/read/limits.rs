//! Bounds of SwiGLUs that metadata give layer by layer.

use brigade_spec::{Activation, ModelError};

use super::hparams::Hparams;
use brigade_shapes::{GateBound, SwiGluLimit};

/// Bounds up to this are none.
const NONE: f32 = 1e-6;

/// The bound of each layer's SwiGLU.
pub(crate) struct SwiGluLimits {
    limits: Option<Vec<f32>>,
    gate: GateBound,
}

impl SwiGluLimits {
    /// Reads `key`; `gate` says where gates meet their bound.
    pub(crate) fn read(hp: &Hparams<'_>, key: &str, gate: GateBound) -> Result<Self, ModelError> {
        Ok(Self { limits: hp.f32_per_layer(key)?, gate })
    }

    /// The activation of layer `il`.
    pub(crate) fn of(&self, il: usize) -> Activation {
        match self
            .limits
            .as_ref()
            .and_then(|limits| limits.get(il).copied())
            .filter(|&limit| limit > NONE)
        {
            Some(limit) => Activation::LimitedSwiGlu(SwiGluLimit { limit, gate: self.gate }),
            None => Activation::SwiGlu,
        }
    }
}

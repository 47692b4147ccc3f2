//! The norms between blocks: RMS norm and layer norm, with or without weights and biases.

use crate::device::{Device, Rows, ValuesMut};
use crate::kernels::Vector;
use crate::spec::{ModelError, NormKind};
use crate::weights::WeightLoader;

/// A norm with its weights, `[n]` each.
pub(crate) struct Norm {
    weight: Vector,
    bias: Option<Vector>,
    /// Whether the mean is taken off; such a norm always has a bias, of zeros if need be.
    centred: bool,
    eps: f32,
}

/// `out = norm(x)`, or `x` as it is.
pub(super) fn read(device: &Device, norm: Option<&Norm>, x: &Rows, out: &mut Rows) {
    match norm {
        Some(norm) => norm.apply(device, x, out),
        None => out.set(x),
    }
}

/// [`read`] with the result in place of `x`.
pub(super) fn apply(device: &Device, norm: Option<&Norm>, x: &mut Rows) {
    if let Some(norm) = norm {
        norm.apply_inplace(device, x);
    }
}

impl Norm {
    /// An RMS norm that weighs all `n` values alike.
    #[cfg(test)]
    pub(crate) fn plain(n: usize, eps: f32) -> Self {
        Self { weight: vec![1.0; n].into(), bias: None, centred: false, eps }
    }

    /// Loads the tensor `weight`, and for norms that have one the bias beside it.
    pub(crate) fn load(
        loader: &mut WeightLoader<'_>,
        kind: NormKind,
        weight: &str,
        n: usize,
        eps: f32,
    ) -> Result<Self, ModelError> {
        let centred =
            matches!(kind, NormKind::Layer | NormKind::LayerUnbiased | NormKind::LayerUnweighted);
        let bias = match kind {
            NormKind::Rms => None,
            NormKind::RmsUnweighted => {
                return Ok(Self { weight: vec![1.0; n].into(), bias: None, centred, eps });
            }
            NormKind::LayerUnbiased => Some(vec![0.0; n].into()),
            NormKind::LayerUnweighted => {
                return Ok(Self {
                    weight: vec![1.0; n].into(),
                    bias: Some(vec![0.0; n].into()),
                    centred,
                    eps,
                });
            }
            NormKind::Layer | NormKind::RmsBiased => {
                let stem = weight.strip_suffix(".weight").unwrap_or(weight);
                Some(loader.vector(&format!("{stem}.bias"), n)?)
            }
        };
        Ok(Self { weight: loader.vector(weight, n)?, bias, centred, eps })
    }

    /// Width of a row.
    pub(crate) fn width(&self) -> usize {
        self.weight.len()
    }

    /// `out = norm(x)`, row by row.
    pub(crate) fn apply(&self, device: &Device, x: &Rows, out: &mut Rows) {
        match &self.bias {
            None => device.rms_norm(x, &self.weight, self.eps, out),
            Some(_) => {
                out.set(x);
                self.apply_inplace(device, out);
            }
        }
    }

    /// [`Norm::apply`] with the result in place of `x`.
    pub(crate) fn apply_inplace(&self, device: &Device, x: &mut (impl ValuesMut + ?Sized)) {
        match &self.bias {
            Some(bias) if self.centred => {
                device.group_layer_norm(x, &self.weight, bias, self.width(), self.eps);
            }
            bias => {
                device.rms_norm_inplace(x, &self.weight, self.eps);
                bias.iter().for_each(|bias| device.add_bias(x, bias));
            }
        }
    }
}

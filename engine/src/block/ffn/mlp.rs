//! The dense FFN: a way up, an activation that may have a gate, a norm where there is one, and a way down. Each
//! matrix may have a bias.

use crate::block::linear::Linear;
use crate::block::{Block, BlockCx};
use crate::device::{Device, Rows, Values, ValuesMut};
use crate::kernels::Vector;
use crate::spec::{Activation, MlpSpec, ModelError};
use crate::state::BlockState;
use crate::weights::WeightLoader;

/// Weights of one dense FFN.
pub struct Mlp {
    activation: Activation,
    /// Projection to the gate, where the activation has one.
    gate: Option<Linear>,
    up: Linear,
    /// Weight and epsilon of a norm before the way down.
    sub_norm: Option<(Vector, f32)>,
    /// Threshold of the gate's values: [`MlpSpec::gate_above`].
    gate_above: Option<f32>,
    down: Linear,
}

impl Mlp {
    /// Loads `<stem>.ffn_{gate,up,down}<suffix>`, the gate only where the activation has one, or from the
    /// way up where the two are fused.
    pub fn load(
        spec: &MlpSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part| format!("{stem}.ffn_{part}{}", spec.suffix);
        let (gate, up) = if spec.fused {
            let both = format!("{}.weight", name("up"));
            let [gate, up] = Linear::row_blocks(loader, &both, [spec.n_ff; 2], n_embd)?;
            let bias = loader.opt_vector(&format!("{}.bias", name("up")), 2 * spec.n_ff)?;
            let halves = bias
                .map(|bias| (bias[..spec.n_ff].to_vec().into(), bias[spec.n_ff..].to_vec().into()));
            let (gate_bias, up_bias) = halves.unzip();
            (Some(gate.with_bias(gate_bias)), up.with_bias(up_bias))
        } else {
            let gate = if spec.activation.is_gated() {
                Some(Linear::load(loader, &name("gate"), spec.n_ff, n_embd)?)
            } else {
                None
            };
            (gate, Linear::load(loader, &name("up"), spec.n_ff, n_embd)?)
        };
        let sub_norm = match spec.sub_norm {
            Some(eps) => {
                Some((loader.vector(&format!("{}.weight", name("sub_norm")), spec.n_ff)?, eps))
            }
            None => None,
        };
        Ok(Self {
            activation: spec.activation,
            gate,
            up,
            sub_norm,
            gate_above: spec.gate_above,
            down: Linear::load(loader, &name("down"), n_embd, spec.n_ff)?,
        })
    }
}

impl Block for Mlp {
    fn nbytes(&self) -> usize {
        self.gate.iter().chain([&self.up, &self.down]).map(Linear::nbytes).sum()
    }

    fn forward(&self, cx: &mut BlockCx<'_>, _: &mut BlockState, x: &Rows) -> Rows {
        let [up, gate] = cx.project_some(x, [Some(&self.up), self.gate.as_ref()]);
        let [mut up, mut gate] = [up, gate].map(Option::unwrap_or_default);
        if let Some(deviations) = self.gate_above {
            cx.device.keep_above(&mut gate, deviations);
        }
        activate(cx.device, self.activation, &gate, &mut up);
        if let Some((weight, eps)) = &self.sub_norm {
            cx.device.rms_norm_inplace(&mut up, weight, *eps);
        }
        self.down.forward(cx, &up)
    }
}

/// Replaces `up` by what goes down. `gate` is as long where the activation has one, else empty.
pub(crate) fn activate(
    device: &Device,
    activation: Activation,
    gate: &(impl Values + ?Sized),
    up: &mut (impl ValuesMut + ?Sized),
) {
    match activation {
        Activation::SwiGlu => device.silu_mul_inplace(up, gate),
        Activation::BoundedSilu(bounds) => device.bounded_gate_mul(up, gate, bounds),
        Activation::ReluSquared => device.relu_squared(up),
        Activation::GeGlu => device.gelu_mul(up, gate),
        Activation::ReGlu => device.relu_mul(up, gate),
        Activation::Gelu => device.gelu(up),
        Activation::Xielu(shape) => device.xielu(up, shape),
        Activation::LimitedSwiGlu(limit) => device.limited_swiglu_mul(up, gate, limit),
        Activation::Relu => device.relu(up),
        Activation::ClampedSwiGlu(clamp) => device.clamped_swiglu_mul(up, gate, clamp),
    }
}

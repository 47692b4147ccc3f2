//! The dense FFN: a way up, an activation that may have a gate, and a way down. Each may have a bias.

use super::BlockCx;
use crate::arch::{Activation, MlpSpec};
use crate::error::ModelError;
use crate::kernels::{ActRows, Compute, MatmulJob, PackedMatrix};
use crate::weights::WeightLoader;

/// Weights of one dense FFN.
pub struct Mlp {
    activation: Activation,
    /// Where the activation has one.
    gate: Option<Affine>,
    up: Affine,
    down: Affine,
}

/// A matrix with its optional bias.
struct Affine {
    weight: PackedMatrix,
    bias: Option<Vec<f32>>,
}

impl Affine {
    fn load(
        loader: &mut WeightLoader<'_>,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            weight: loader.matrix(&format!("{stem}.weight"), rows, cols)?,
            bias: loader.opt_vector(&format!("{stem}.bias"), rows)?,
        })
    }
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
            let [gate, up] = loader.row_blocks(&both, [spec.n_ff; 2], n_embd)?;
            (Some(Affine { weight: gate, bias: None }), Affine { weight: up, bias: None })
        } else {
            let gate = match spec.activation.is_gated() {
                true => Some(Affine::load(loader, &name("gate"), spec.n_ff, n_embd)?),
                false => None,
            };
            (gate, Affine::load(loader, &name("up"), spec.n_ff, n_embd)?)
        };
        Ok(Self {
            activation: spec.activation,
            gate,
            up,
            down: Affine::load(loader, &name("down"), n_embd, spec.n_ff)?,
        })
    }

    /// `out[n_rows, n_embd]` from `x[n_rows, n_embd]`.
    pub fn forward(&self, cx: &mut BlockCx<'_>, x: &ActRows<'_>, out: &mut [f32]) {
        let n = x.n_rows();
        let mut up = cx.scratch.take(n * self.up.weight.rows());
        let mut gate = cx.scratch.take(self.gate.as_ref().map_or(0, |_| up.len()));
        let mut jobs = vec![MatmulJob { w: &self.up.weight, x, rows: 0..n, out: &mut up }];
        if let Some(Affine { weight, .. }) = &self.gate {
            jobs.push(MatmulJob { w: weight, x, rows: 0..n, out: &mut gate });
        }
        cx.compute.matmul(&mut jobs);
        drop(jobs);
        cx.add_bias(&mut gate, self.gate.as_ref().and_then(|gate| gate.bias.as_deref()));
        cx.add_bias(&mut up, self.up.bias.as_deref());
        activate(cx.compute, self.activation, &gate, &mut up);
        let down = &self.down.weight;
        let x = ActRows::new(cx.compute, &up, down.cols(), &[down]);
        cx.compute.matmul(&mut [MatmulJob { w: down, x: &x, rows: 0..n, out }]);
        cx.add_bias(out, self.down.bias.as_deref());
        drop(x);
        cx.scratch.give_all([gate, up]);
    }

    /// The matrices that multiply the block's input.
    pub fn inputs(&self) -> Vec<&PackedMatrix> {
        self.gate.iter().chain([&self.up]).map(|w| &w.weight).collect()
    }

    /// Bytes of all matrices.
    pub fn nbytes(&self) -> usize {
        self.gate.iter().chain([&self.up, &self.down]).map(|w| w.weight.nbytes()).sum()
    }
}

/// Replaces `up` by what goes down. `gate` is as long where the activation has one, else empty.
pub(super) fn activate(compute: &Compute, activation: Activation, gate: &[f32], up: &mut [f32]) {
    match activation {
        Activation::SwiGlu => compute.silu_mul_inplace(up, gate),
        Activation::BoundedSilu(bounds) => compute.bounded_gate_mul(up, gate, bounds),
        Activation::ReluSquared => compute.relu_squared(up),
        Activation::GeGlu => compute.gelu_mul(up, gate),
        Activation::Gelu => compute.gelu(up),
        Activation::ClampedSwiGlu(clamp) => compute.clamped_swiglu_mul(up, gate, clamp),
    }
}

//! Dense gated FFN: `down(silu(gate x) * up x)` (SwiGLU, arXiv 2002.05202), biases where present.

use super::BlockCx;
use crate::arch::MlpSpec;
use crate::error::ModelError;
use crate::kernels::{ActRows, MatmulJob, PackedMatrix};
use crate::weights::WeightLoader;

/// Weights of one dense FFN.
pub struct Mlp {
    gate: PackedMatrix,
    up: PackedMatrix,
    down: PackedMatrix,
    gate_bias: Option<Vec<f32>>,
    up_bias: Option<Vec<f32>>,
    down_bias: Option<Vec<f32>>,
}

impl Mlp {
    /// Loads `<stem>.ffn_{gate,up,down}<suffix>`.
    pub fn load(
        spec: &MlpSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part, kind| format!("{stem}.ffn_{part}{}.{kind}", spec.suffix);
        Ok(Self {
            gate: loader.matrix(&name("gate", "weight"), spec.n_ff, n_embd)?,
            up: loader.matrix(&name("up", "weight"), spec.n_ff, n_embd)?,
            down: loader.matrix(&name("down", "weight"), n_embd, spec.n_ff)?,
            gate_bias: loader.opt_vector(&name("gate", "bias"), spec.n_ff)?,
            up_bias: loader.opt_vector(&name("up", "bias"), spec.n_ff)?,
            down_bias: loader.opt_vector(&name("down", "bias"), n_embd)?,
        })
    }

    /// `out[n_rows, n_embd]` from `x[n_rows, n_embd]`.
    pub fn forward(&self, cx: &mut BlockCx<'_>, x: &ActRows<'_>, out: &mut [f32]) {
        let n = x.n_rows();
        let mut gate = cx.scratch.take(n * self.gate.rows());
        let mut up = cx.scratch.take(n * self.up.rows());
        cx.compute.matmul(&mut [
            MatmulJob { w: &self.gate, x, rows: 0..n, out: &mut gate },
            MatmulJob { w: &self.up, x, rows: 0..n, out: &mut up },
        ]);
        cx.add_bias(&mut gate, self.gate_bias.as_deref());
        cx.add_bias(&mut up, self.up_bias.as_deref());
        let mut inner = cx.scratch.take(gate.len());
        cx.compute.silu_mul(&gate, &up, &mut inner);
        let x = ActRows::new(cx.compute, &inner, self.gate.rows(), &[&self.down]);
        cx.compute.matmul(&mut [MatmulJob { w: &self.down, x: &x, rows: 0..n, out }]);
        cx.add_bias(out, self.down_bias.as_deref());
        drop(x);
        cx.scratch.give_all([gate, up, inner]);
    }

    /// The matrices that multiply the block's input.
    pub fn inputs(&self) -> Vec<&PackedMatrix> {
        vec![&self.gate, &self.up]
    }

    /// Bytes of all matrices.
    pub fn nbytes(&self) -> usize {
        self.gate.nbytes() + self.up.nbytes() + self.down.nbytes()
    }
}

//! A row that a token has for a layer alone (per-layer embeddings of Gemma 3n and of Gemma 4's small models). The stream
//! opens a gate for it: `norm(proj (gelu(inp_gate x) * row))`, with the tanh GELU.

use super::ffn::mlp::activate;
use super::linear::Linear;
use super::{Block, BlockCx};
use crate::device::Rows;
use crate::kernels::Vector;
use crate::spec::{Activation, Beside, LayerRowSpec, ModelError};
use crate::state::BlockState;
use crate::weights::WeightLoader;

/// Weights of one layer's way for its rows.
pub struct LayerRow {
    spec: LayerRowSpec,
    /// `[width, n_embd]`.
    gate: Linear,
    /// `[n_embd, width]`.
    back: Linear,
    /// `[n_embd]`.
    norm: Vector,
}

impl LayerRow {
    /// Loads `<stem>.inp_gate`, `proj` and `post_norm`.
    pub fn load(
        spec: &LayerRowSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.{part}.weight");
        Ok(Self {
            spec: *spec,
            gate: Linear::matrix(loader, &name("inp_gate"), spec.width, n_embd)?,
            back: Linear::matrix(loader, &name("proj"), n_embd, spec.width)?,
            norm: loader.vector(&name("post_norm"), n_embd)?,
        })
    }
}

impl Block for LayerRow {
    fn nbytes(&self) -> usize {
        self.gate.nbytes() + self.back.nbytes()
    }

    /// Output for `x` and the layer's rows beside it.
    fn forward(&self, cx: &mut BlockCx<'_>, _: &mut BlockState, x: &Rows) -> Rows {
        let gate = self.gate.forward(cx, x);
        // Rows of layers that are done may still be there, or may have been left behind at a cut.
        let (rows, width) = (&cx.beside[Beside::ROWS], self.spec.width);
        let first = rows.cols() - self.spec.n_left * width;
        let mut row = cx.device.columns_of(cx.scratch, rows, first, width);
        activate(cx.device, Activation::GeGlu, &gate, &mut row);
        let mut out = self.back.forward(cx, &row);
        cx.device.rms_norm_inplace(&mut out, &self.norm, self.spec.eps);
        out
    }
}

//! A row that a token has for a layer alone (per-layer embeddings of Gemma 3n and of Gemma 4's small models). The stream
//! opens a gate for it: `norm(proj (gelu(inp_gate x) * row))`, with the tanh GELU.

use super::linear::Linear;
use super::mlp::activate;
use super::{Block, BlockCx, copy_columns};
use crate::arch::{Activation, Beside, LayerRowSpec};
use crate::error::ModelError;
use crate::kernels::ActRows;
use crate::state::BlockState;
use crate::weights::WeightLoader;

/// Weights of one layer's way for its rows.
pub struct LayerRow {
    spec: LayerRowSpec,
    /// `[n_embd]`, what the gate reads times; `None` where it reads the stream as it is.
    scale: Option<Vec<f32>>,
    /// `[width, n_embd]`.
    gate: Linear,
    /// `[n_embd, width]`.
    back: Linear,
    /// `[n_embd]`.
    norm: Vec<f32>,
}

impl LayerRow {
    /// Loads `<stem>.inp_gate`, `proj` and `post_norm`; where there are several streams `altup_correct_scale` too.
    pub fn load(
        spec: &LayerRowSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.{part}.weight");
        let scale = match spec.altup {
            Some(_) => Some(loader.vector(&name("altup_correct_scale"), n_embd)?),
            None => None,
        };
        Ok(Self {
            spec: *spec,
            scale,
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

    /// `out[n_rows, n_embd]` from `x[n_rows, n_embd]` and the layer's rows beside it. Where there are several streams, it
    /// goes to the others, and `out` is zeros.
    fn forward(&self, cx: &mut BlockCx<'_>, _: &mut BlockState, x: &ActRows<'_>, out: &mut [f32]) {
        let (n, width) = (x.n_rows(), self.spec.width);
        let [mut gate, mut row] = [0; 2].map(|_| cx.scratch.take(n * width));
        match &self.scale {
            None => cx.project(&mut [self.gate.job(x, &mut gate)]),
            Some(scale) => {
                let mut scaled = cx.scratch.take(x.values().len());
                scaled.copy_from_slice(x.values());
                cx.compute.fill_rows(&mut scaled, scale.len(), &|_, row| {
                    row.iter_mut().zip(scale).for_each(|(x, scale)| *x *= scale);
                });
                self.gate.forward(cx, &scaled, &mut gate);
            }
        }
        // Rows of layers that are done may still be there, or may have been left behind at a cut.
        let rows = &cx.beside[Beside::ROWS];
        let stride = rows.len() / n;
        copy_columns(rows, stride, stride - self.spec.n_left * width, width, &mut row);
        activate(cx.compute, Activation::GeGlu, &gate, &mut row);
        self.back.forward(cx, &row, out);
        cx.compute.rms_norm_inplace(out, &self.norm, self.spec.eps);
        if let Some(altup) = &self.spec.altup {
            for stream in &mut cx.beside[altup.others()] {
                cx.compute.add(stream, out);
            }
            out.fill(0.0);
        }
    }
}

//! Lightning attention (MiniMax-01, arXiv 2501.08313, section 2.2): linear attention in which a head forgets at a pace of
//! its own that no token changes. With `q`, `k` and `v` of a head, each behind a SiLU:
//! `S = decay * S + k vᵀ`, `y = q S`. All heads together are normed, gated and projected.
//!
//! That is Mamba-2's recurrence with time steps of one, where each head has keys and queries of its own.

use crate::block::linear::Linear;
use crate::block::{Block, BlockCx};
use crate::device::Rows;
use crate::ops::{Ssd, SsdInput, SsdScan, Vector};
use crate::spec::{LightningSpec, ModelError};
use crate::state::{BlockState, scan_parts};
use crate::weights::WeightLoader;

/// Number whose softplus is 1: `ln(e - 1)`.
const STEP_OF_ONE: f32 = 0.541_324_85;

/// Weights of one layer's lightning attention.
pub struct Lightning {
    /// To queries, keys and values, `[n_head * head_dim, n_embd]` each.
    qkv: [Linear; 3],
    /// `[n_head * head_dim, n_embd]`.
    gate: Linear,
    ssd: Ssd,
    /// `[n_head * head_dim]`.
    norm: Vector,
    eps: f32,
    output: Linear,
}

impl Lightning {
    /// Loads `<stem>.attn_qkv`, `attn_gate`, `attn_norm_2` and `attn_output`.
    pub fn load(
        spec: &LightningSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let (n_head, d) = (spec.n_head, spec.head_dim);
        let n_inner = n_head * d;
        let name = |part: &str| format!("{stem}.attn_{part}.weight");
        // Each head has rows for its query, its key and its value.
        let of_heads = |part: usize| -> Vec<usize> {
            (0..n_head).flat_map(|h| (3 * h + part) * d..(3 * h + part + 1) * d).collect()
        };
        let rows = [0, 1, 2].map(of_heads);
        let (none, steps) = (vec![0.0; n_head], vec![STEP_OF_ONE; n_head]);
        Ok(Self {
            qkv: Linear::split(loader, &name("qkv"), 3 * n_inner, n_embd, rows)?,
            gate: Linear::matrix(loader, &name("gate"), n_inner, n_embd)?,
            ssd: Ssd::new(spec.shape(), spec.log_decays().into(), none.into(), steps.into()),
            norm: loader.vector(&name("norm_2"), n_inner)?,
            eps: spec.eps,
            output: Linear::matrix(loader, &name("output"), n_embd, n_inner)?,
        })
    }
}

impl Block for Lightning {
    fn nbytes(&self) -> usize {
        self.qkv.iter().chain([&self.gate, &self.output]).map(Linear::nbytes).sum()
    }

    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let slots = state.slots();
        let (n, n_inner, n_head) = (x.n_rows(), self.gate.rows(), self.ssd.shape.n_head);
        let steps = cx.scratch.zeros(n, n_head);
        let [to_q, to_k, to_v] = &self.qkv;
        let [mut q, mut k, mut v, gate] = cx.project(x, [to_q, to_k, to_v, &self.gate]);
        let mut y = cx.scratch.take(n, n_inner);
        for x in [&mut q, &mut k, &mut v] {
            cx.device.silu(x);
        }
        let input =
            SsdInput { x: v.columns(0), b: k.columns(0), c: q.columns(0), dt: steps.columns(0) };
        let parts = scan_parts(cx.parts);
        let (_, states) = slots.split();
        cx.device.run(SsdScan {
            ssd: &self.ssd,
            parts: &parts,
            states: states.view_mut(),
            input,
            out: y.view_mut(),
        });
        cx.device.rms_norm_inplace(&mut y, &self.norm, self.eps);
        cx.device.sigmoid_mul(&mut y, &gate);
        self.output.forward(cx, &y)
    }
}

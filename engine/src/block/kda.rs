//! Kimi delta attention (Kimi Linear, arXiv 2510.26692): queries, keys and values through short
//! convolutions, a low-rank forget gate for each key channel, the delta rule, and a gated norm.

use super::BlockCx;
use crate::arch::KdaSpec;
use crate::error::ModelError;
use crate::kernels::{
    ActRows, Columns, Conv, DeltaRows, DeltaShape, MatmulJob, PackedMatrix, StateAt,
};
use crate::state::SlotStates;
use crate::weights::WeightLoader;

/// Weights of one KDA mixer; `d` is the width of a head, `inner = n_head * d`.
pub struct Kda {
    shape: DeltaShape,
    eps: f32,
    /// To queries, keys and values, `[inner, n_embd]` each.
    qkv: [PackedMatrix; 3],
    /// Their convolutions.
    convs: [Conv; 3],
    /// To the forget gate: `[d, n_embd]`, then `[inner, d]`.
    forget: [PackedMatrix; 2],
    /// Added to the forget gate, `[inner]`.
    forget_bias: Vec<f32>,
    /// Log decay of a unit of forget gate, below 0, `[inner]`.
    rates: Vec<f32>,
    /// To the rate of correction, `[n_head, n_embd]`.
    beta: PackedMatrix,
    /// To the output gate: `[d, n_embd]`, then `[inner, d]`.
    gate: [PackedMatrix; 2],
    /// Weight of the norm of a head's output, `[d]`.
    norm: Vec<f32>,
    output: PackedMatrix,
}

impl Kda {
    /// Loads `<stem>.attn_{q,k,v}` (or `attn_qkv`), `attn_output` and `ssm_*`.
    pub fn load(
        spec: &KdaSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let (d, n_head, inner) = (spec.head_dim, spec.n_head, spec.n_head * spec.head_dim);
        let name = |part: &str| format!("{stem}.{part}");
        let fused = name("attn_qkv.weight");
        let qkv = if loader.has(&fused) {
            let thirds = [0, 1, 2].map(|i| (i * inner..(i + 1) * inner).collect());
            loader.split_matrix(&fused, 3 * inner, n_embd, thirds)?
        } else {
            let mut one = |part| loader.matrix(&name(part), inner, n_embd);
            [one("attn_q.weight")?, one("attn_k.weight")?, one("attn_v.weight")?]
        };
        let mut conv = |part: &str| -> Result<Conv, ModelError> {
            // Some files end the dimensions with another 1.
            let taps = loader.values(&name(part), &[spec.conv_taps, 1, inner])?;
            Ok(Conv::new(&taps, spec.conv_taps, None, true))
        };
        let convs = [
            conv("ssm_conv1d_q.weight")?,
            conv("ssm_conv1d_k.weight")?,
            conv("ssm_conv1d_v.weight")?,
        ];
        let mut low_rank = |a: &str, b: &str| -> Result<[PackedMatrix; 2], ModelError> {
            Ok([loader.matrix(&name(a), d, n_embd)?, loader.matrix(&name(b), inner, d)?])
        };
        let rates = |per_head: Vec<f32>| {
            per_head.into_iter().flat_map(|rate| std::iter::repeat_n(rate, d)).collect()
        };
        Ok(Self {
            shape: spec.shape(),
            eps: spec.eps,
            qkv,
            convs,
            forget: low_rank("ssm_f_a.weight", "ssm_f_b.weight")?,
            gate: low_rank("ssm_g_a.weight", "ssm_g_b.weight")?,
            forget_bias: loader.vector(&name("ssm_dt.bias"), inner)?,
            rates: rates(loader.values(&name("ssm_a"), &[1, n_head])?),
            beta: loader.matrix(&name("ssm_beta.weight"), n_head, n_embd)?,
            norm: loader.vector(&name("ssm_norm.weight"), d)?,
            output: loader.matrix(&name("attn_output.weight"), n_embd, inner)?,
        })
    }

    /// `out[n_rows, n_embd]` from `x[n_rows, n_embd]`; the states move on.
    pub fn forward(
        &self,
        cx: &mut BlockCx<'_>,
        states: &mut SlotStates,
        x: &ActRows<'_>,
        out: &mut [f32],
    ) {
        let n = x.n_rows();
        let DeltaShape { n_head, d_k: d, .. } = self.shape;
        let inner = n_head * d;
        let mut raw = [0, 1, 2].map(|_| cx.scratch.take(n * inner));
        let mut low = [0, 1].map(|_| cx.scratch.take(n * d));
        let mut beta = cx.scratch.take(n * n_head);
        let weights = self.qkv.iter().chain([&self.forget[0], &self.gate[0], &self.beta]);
        let outs = raw.iter_mut().chain(&mut low).chain([&mut beta]);
        let mut jobs: Vec<_> =
            weights.zip(outs).map(|(w, out)| MatmulJob { w, x, rows: 0..n, out }).collect();
        cx.compute.matmul(&mut jobs);
        drop(jobs);
        let [q, k, v] = self.convolve(cx, states, &raw);
        let [mut decay, gate] = self.gates(cx, &low);
        cx.compute.decay_factors(&mut decay, &self.forget_bias, &self.rates);
        cx.compute.sigmoid(&mut beta);
        let rows = DeltaRows {
            q: Columns::whole(&q, inner),
            k: Columns::whole(&k, inner),
            v: Columns::whole(&v, inner),
            decay: Columns::whole(&decay, inner),
            beta: Columns::whole(&beta, n_head),
        };
        let [mut y, ..] = raw;
        let (_, scan_states) = states.split();
        let parts = SlotStates::parts(cx.parts);
        cx.compute.delta_scan(&self.shape, &parts, scan_states, rows, &mut y);
        cx.compute.rms_norm_inplace(&mut y, &self.norm, self.eps);
        cx.compute.sigmoid_mul(&mut y, &gate);
        let x = ActRows::new(cx.compute, &y, inner, &[&self.output]);
        cx.compute.matmul(&mut [MatmulJob { w: &self.output, x: &x, rows: 0..n, out }]);
        drop(x);
        cx.scratch.give_all([y, q, k, v, decay, gate, beta]);
        cx.scratch.give_all(low);
    }

    /// Convolved queries, keys and values; queries and keys of unit length.
    fn convolve(
        &self,
        cx: &mut BlockCx<'_>,
        states: &mut SlotStates,
        raw: &[Vec<f32>; 3],
    ) -> [Vec<f32>; 3] {
        let parts = SlotStates::parts(cx.parts);
        let (conv_states, _) = states.split();
        let mut out = [0, 1, 2].map(|i: usize| cx.scratch.take(raw[i].len()));
        let per_slot = self.convs.iter().map(Conv::state_len).sum();
        let mut first = 0;
        for ((conv, raw), out) in self.convs.iter().zip(raw).zip(&mut out) {
            let x = Columns::whole(raw, conv.channels());
            let at = StateAt { per_slot, first };
            cx.compute.conv_at(conv, &parts, conv_states, at, x, out);
            first += conv.state_len();
        }
        for x in &mut out[..2] {
            cx.compute.l2_norm(x, self.shape.d_k, self.eps);
        }
        out
    }

    /// Forget gate and output gate `[n, inner]` from their narrow halves `[n, d]`.
    fn gates(&self, cx: &mut BlockCx<'_>, low: &[Vec<f32>; 2]) -> [Vec<f32>; 2] {
        let wide = [&self.forget[1], &self.gate[1]];
        let n = low[0].len() / self.shape.d_k;
        let mut out = wide.map(|w| cx.scratch.take(n * w.rows()));
        let rows = [0, 1].map(|i| ActRows::new(cx.compute, &low[i], self.shape.d_k, &[wide[i]]));
        let [forget, gate] = &mut out;
        cx.compute.matmul(&mut [
            MatmulJob { w: wide[0], x: &rows[0], rows: 0..n, out: forget },
            MatmulJob { w: wide[1], x: &rows[1], rows: 0..n, out: gate },
        ]);
        out
    }

    /// The matrices that multiply the block's input.
    pub fn inputs(&self) -> Vec<&PackedMatrix> {
        self.qkv.iter().chain([&self.forget[0], &self.gate[0], &self.beta]).collect()
    }

    /// Bytes of all matrices.
    pub fn nbytes(&self) -> usize {
        let inner = [&self.forget[1], &self.gate[1], &self.output];
        self.inputs().into_iter().chain(inner).map(PackedMatrix::nbytes).sum()
    }
}

//! The gated delta net (arXiv 2412.06464) as Qwen3-Next and Qwen3.5 have it. One convolution runs over
//! queries, keys and values. Each head has one decay. There are fewer key heads than value heads, and the
//! output has a gated norm.
//!
//! Files hold the projections in three forms. Loading makes the same matrices of all of them.

use crate::block::linear::Linear;
use crate::block::{Block, BlockCx};
use crate::device::{Device, Memory, Rows, Scratch};
use crate::kernels::{DeltaShape, StateAt};
use crate::ops::{Conv, ConvRows, DeltaRows, DeltaScan, ScanPart, Vector};
use crate::spec::{DeltaNetSpec, ModelError, OutputGate};
use crate::state::{BlockState, scan_parts};
use crate::weights::WeightLoader;

/// Weights of one gated delta net; `d` is the width of a head, key heads are `n_key_head`, value heads
/// `n_head`.
pub struct DeltaNet {
    shape: DeltaShape,
    eps: f32,
    output_gate: OutputGate,
    /// To queries, keys and values, `[(2 n_key_head + n_head) d, n_embd]`.
    qkv: Linear,
    /// To the output gate, `[n_head d, n_embd]`.
    gate: Linear,
    /// To the rate of correction, `[n_head, n_embd]`.
    beta: Linear,
    /// To the forget gate, `[n_head, n_embd]`.
    alpha: Linear,
    /// Over queries and keys.
    conv_qk: Conv,
    /// Convolution over the values.
    conv_v: Conv,
    /// Added to the forget gate, `[n_head]`.
    forget_bias: Vector,
    /// Log decay of a unit of forget gate, below 0, `[n_head]`.
    rates: Vector,
    /// Weight of the norm of a head's output, `[d]`.
    norm: Vector,
    output: Linear,
}

/// Rows of each part of a matrix whose rows are grouped by key head; `widths` are those of the parts
/// within a group.
fn regroup<const N: usize>(n_groups: usize, widths: [usize; N]) -> [Vec<usize>; N] {
    let group: usize = widths.iter().sum();
    let mut first = 0;
    widths.map(|width| {
        let start = first;
        first += width;
        (0..n_groups).flat_map(|g| (0..width).map(move |i| g * group + start + i)).collect()
    })
}

impl DeltaNet {
    /// Loads `<stem>.attn_{qkv,gate}` (or `ssm_in`), `ssm_ba` (or `ssm_beta` and `ssm_alpha`) and the
    /// other `ssm_*`.
    pub fn load(
        spec: &DeltaNetSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let DeltaShape { n_head, n_key_head, d_k: d, .. } = spec.shape;
        let name = |part: &str| format!("{stem}.{part}");
        let (keys, values, per_key) = (2 * n_key_head * d, n_head * d, n_head / n_key_head);
        let all = name("ssm_in.weight");
        let [qkv, gate] = if loader.has(&all) {
            let [q, k, v, z] = regroup(n_key_head, [d, d, per_key * d, per_key * d]);
            let qkv = [q, k, v].concat();
            Linear::split(loader, &all, keys + 2 * values, n_embd, [qkv, z])?
        } else {
            let qkv = Linear::matrix(loader, &name("attn_qkv.weight"), keys + values, n_embd)?;
            [qkv, Linear::matrix(loader, &name("attn_gate.weight"), values, n_embd)?]
        };
        let both = name("ssm_ba.weight");
        let [beta, alpha] = if loader.has(&both) {
            let rows = regroup(n_key_head, [per_key, per_key]);
            Linear::split(loader, &both, 2 * n_head, n_embd, rows)?
        } else {
            let mut one = |part| Linear::matrix(loader, &name(part), n_head, n_embd);
            [one("ssm_beta.weight")?, one("ssm_alpha.weight")?]
        };
        let taps = loader.values(&name("ssm_conv1d.weight"), &[spec.conv_taps, keys + values])?;
        let (taps_qk, taps_v) = taps.split_at(keys * spec.conv_taps);
        Ok(Self {
            shape: spec.shape,
            eps: spec.eps,
            output_gate: spec.gate,
            qkv,
            gate,
            beta,
            alpha,
            conv_qk: Conv::new(taps_qk, spec.conv_taps, None, true),
            conv_v: Conv::new(taps_v, spec.conv_taps, None, true),
            forget_bias: loader.vector(&name("ssm_dt.bias"), n_head)?,
            rates: loader.vector(&name("ssm_a"), n_head)?,
            norm: loader.vector(&name("ssm_norm.weight"), d)?,
            output: Linear::matrix(loader, &name("ssm_out.weight"), n_embd, values)?,
        })
    }
}

impl Block for DeltaNet {
    fn nbytes(&self) -> usize {
        self.of_input().into_iter().chain([&self.output]).map(Linear::nbytes).sum()
    }

    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let states = state.slots();
        let parts = scan_parts(cx.parts);
        let DeltaShape { n_key_head, d_k: d, .. } = self.shape;
        let [raw, gate, mut beta, mut decay] = cx.project(x, self.of_input());
        let (qk, v) = self.convolve(cx.device, cx.scratch, &parts, states.split().0, &raw);
        cx.device.decay_factors(&mut decay, &self.forget_bias, &self.rates);
        cx.device.sigmoid(&mut beta);
        let rows = DeltaRows {
            q: qk.columns(0),
            k: qk.columns(n_key_head * d),
            v: v.columns(0),
            decay: decay.columns(0),
            beta: beta.columns(0),
        };
        let mut y = cx.scratch.take(v.n_rows(), v.cols());
        let (_, scan_states) = states.split();
        cx.device.run(DeltaScan {
            shape: &self.shape,
            parts: &parts,
            states: scan_states.view_mut(),
            x: rows,
            out: y.view_mut(),
        });
        cx.device.rms_norm_inplace(&mut y, &self.norm, self.eps);
        match self.output_gate {
            OutputGate::Silu => cx.device.silu_mul_inplace(&mut y, &gate),
            OutputGate::Sigmoid => cx.device.sigmoid_mul(&mut y, &gate),
        }
        self.output.forward(cx, &y)
    }
}

impl DeltaNet {
    /// Queries and keys of unit length `[n, 2 n_key_head d]`, and values, all convolved.
    fn convolve(
        &self,
        device: &Device,
        scratch: &Scratch,
        parts: &[ScanPart],
        states: &mut Memory<f32>,
        raw: &Rows,
    ) -> (Rows, Rows) {
        let per_slot = self.conv_qk.state_len() + self.conv_v.state_len();
        let mut convolve = |conv: &Conv, first_col, first| {
            let mut out = scratch.take(raw.n_rows(), conv.channels);
            device.run(ConvRows {
                conv,
                parts,
                states: states.view_mut(),
                at: StateAt { per_slot, first },
                x: raw.columns(first_col),
                out: out.view_mut(),
            });
            out
        };
        let mut qk = convolve(&self.conv_qk, 0, 0);
        let first = self.conv_qk.state_len();
        let v = convolve(&self.conv_v, self.conv_qk.channels, first);
        device.l2_norm(&mut qk, self.shape.d_k, self.eps);
        (qk, v)
    }

    /// The projections of the block's input.
    fn of_input(&self) -> [&Linear; 4] {
        [&self.qkv, &self.gate, &self.beta, &self.alpha]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_grouped_by_key_head_come_apart() {
        let [q, v] = regroup(3, [1, 2]);
        assert_eq!(q, [0, 3, 6]);
        assert_eq!(v, [1, 2, 4, 5, 7, 8]);
    }
}

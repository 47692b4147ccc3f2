//! The Mamba-2 mixer (arXiv 2405.21060, section 7): projections, a causal convolution over x, B and C, the
//! state space recurrence, a gate, a norm by groups where there is one, and the output projection.

use super::BlockCx;
use crate::arch::Mamba2Spec;
use crate::error::ModelError;
use crate::kernels::{ActRows, Columns, Conv, MatmulJob, PackedMatrix, Ssd, SsdInput};
use crate::state::SlotStates;
use crate::weights::WeightLoader;

/// Weights of one mixer.
pub struct Mamba2 {
    /// To the gate z, `[n_inner, n_embd]`.
    z: PackedMatrix,
    /// To x, B and C side by side, `[conv.channels(), n_embd]`.
    xbc: PackedMatrix,
    /// To the time steps, `[n_head, n_embd]`.
    dt: PackedMatrix,
    conv: Conv,
    ssd: Ssd,
    /// Weights `[n_group, n_inner / n_group]` and epsilon of the norm after the gate.
    norm: Option<(Vec<f32>, f32)>,
    output: PackedMatrix,
}

impl Mamba2 {
    /// Loads `<stem>.ssm_{in,conv1d,dt,a,d,out}` and, where the spec has it, `ssm_norm`.
    pub fn load(
        spec: &Mamba2Spec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let shape = spec.shape;
        let (n_inner, n_head, channels) = (shape.n_inner(), shape.n_head, spec.conv_channels());
        let name = |part: &str| format!("{stem}.ssm_{part}");
        let rows = [n_inner, channels, n_head];
        let [z, xbc, dt] = loader.row_blocks(&name("in.weight"), rows, n_embd)?;
        let taps = loader.values(&name("conv1d.weight"), &[spec.conv_taps, channels])?;
        let bias = loader.opt_vector(&name("conv1d.bias"), channels)?;
        let group = [n_inner / shape.n_group, shape.n_group];
        let norm = match spec.norm_eps {
            None => None,
            Some(eps) => Some((loader.values(&name("norm.weight"), &group)?, eps)),
        };
        let a = loader.vector(&name("a"), n_head)?;
        let d = loader.vector(&name("d"), n_head)?;
        let dt_bias = loader.vector(&name("dt.bias"), n_head)?;
        Ok(Self {
            z,
            xbc,
            dt,
            conv: Conv::new(&taps, spec.conv_taps, bias, true),
            ssd: Ssd::new(shape, a, d, dt_bias),
            norm,
            output: loader.matrix(&name("out.weight"), n_embd, n_inner)?,
        })
    }

    /// `out[n_rows, n_embd]` from `x[n_rows, n_embd]`; moves the slots of the ubatch's parts on.
    pub fn forward(
        &self,
        cx: &mut BlockCx<'_>,
        slots: &mut SlotStates,
        x: &ActRows<'_>,
        out: &mut [f32],
    ) {
        let n = x.n_rows();
        let shape = self.ssd.shape();
        let (n_inner, channels) = (shape.n_inner(), self.conv.channels());
        let mut z = cx.scratch.take(n * n_inner);
        let mut raw = cx.scratch.take(n * channels);
        let mut dt = cx.scratch.take(n * shape.n_head);
        cx.compute.matmul(&mut [
            MatmulJob { w: &self.z, x, rows: 0..n, out: &mut z },
            MatmulJob { w: &self.xbc, x, rows: 0..n, out: &mut raw },
            MatmulJob { w: &self.dt, x, rows: 0..n, out: &mut dt },
        ]);
        let parts = SlotStates::parts(cx.parts);
        let (conv_states, scan_states) = slots.split();
        let mut xbc = cx.scratch.take(raw.len());
        let raw_columns = Columns { data: &raw, stride: channels, first_col: 0 };
        cx.compute.conv(&self.conv, &parts, conv_states, raw_columns, &mut xbc);
        let columns = |first_col| Columns { data: &xbc, stride: channels, first_col };
        let input = SsdInput {
            x: columns(0),
            b: columns(n_inner),
            c: columns(n_inner + shape.n_bc()),
            dt: Columns { data: &dt, stride: shape.n_head, first_col: 0 },
        };
        let mut y = cx.scratch.take(n * n_inner);
        cx.compute.ssd(&self.ssd, &parts, scan_states, input, &mut y);
        cx.compute.silu_mul_inplace(&mut y, &z);
        if let Some((weights, eps)) = &self.norm {
            cx.compute.group_rms_norm(&mut y, weights, n_inner / shape.n_group, *eps);
        }
        cx.compute.multiply(&self.output, &y, out);
        cx.scratch.give_all([z, raw, dt, xbc, y]);
    }

    /// The matrices that multiply the block's input.
    pub fn inputs(&self) -> Vec<&PackedMatrix> {
        vec![&self.z, &self.xbc, &self.dt]
    }

    /// Bytes of all matrices.
    pub fn nbytes(&self) -> usize {
        [&self.z, &self.xbc, &self.dt, &self.output].iter().map(|w| w.nbytes()).sum()
    }
}

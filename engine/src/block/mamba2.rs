//! The Mamba-2 mixer (arXiv 2405.21060, section 7): projections, a causal convolution over x, B and C, the
//! state space recurrence, a gate, a norm by groups where there is one, and the output projection.
//!
//! PLaMo 2 has the convolution over x alone, and makes B, C and the time steps of what comes out of it.

use super::linear::Linear;
use super::{Block, BlockCx, Buffer, copy_columns, project};
use crate::arch::Mamba2Spec;
use crate::error::ModelError;
use crate::kernels::{ActRows, Columns, Conv, Ssd, SsdInput};
use crate::state::{BlockState, SlotStates};
use crate::weights::WeightLoader;

/// Weights of one mixer.
pub struct Mamba2 {
    /// To the gate z, `[n_inner, n_embd]`.
    z: Linear,
    /// To what the convolution runs over, `[conv.channels(), n_embd]`.
    xbc: Linear,
    steps: Steps,
    conv: Conv,
    ssd: Ssd,
    /// Weights `[n_group, n_inner / n_group]` and epsilon of the norm after the gate.
    norm: Option<(Vec<f32>, f32)>,
    output: Linear,
}

/// Where time steps come from.
enum Steps {
    /// The block's input, `[n_head, n_embd]`; B and C stand beside x.
    Input(Linear),
    /// x behind its convolution, as B and C do.
    OfX {
        /// To B, C and narrow rows, `[2 * n_state + width, n_inner]`.
        select: Linear,
        /// Weights of their norms.
        norms: [Vec<f32>; 3],
        eps: f32,
        /// From narrow rows to time steps, `[n_head, width]`.
        up: Linear,
    },
}

impl Mamba2 {
    /// Loads `<stem>.ssm_{in,conv1d,dt,a,d,out}`; where the spec has them, `ssm_norm`, or `ssm_x` and
    /// `ssm_{b,c,dt}_norm`.
    pub fn load(
        spec: &Mamba2Spec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let shape = spec.shape;
        let (n_inner, n_head, channels) = (shape.n_inner(), shape.n_head, spec.conv_channels());
        let name = |part: &str| format!("{stem}.ssm_{part}");
        let (z, xbc, steps) = load_inputs(spec, stem, n_embd, loader)?;
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
            steps,
            conv: Conv::new(&taps, spec.conv_taps, bias, true),
            ssd: Ssd::new(shape, a, d, dt_bias),
            norm,
            output: Linear::matrix(loader, &name("out.weight"), n_embd, n_inner)?,
        })
    }
}

impl Block for Mamba2 {
    fn nbytes(&self) -> usize {
        let of_x = match &self.steps {
            Steps::Input(_) => 0,
            Steps::OfX { select, up, .. } => select.nbytes() + up.nbytes(),
        };
        self.of_input().chain([&self.output]).map(Linear::nbytes).sum::<usize>() + of_x
    }

    /// `out[n_rows, n_embd]` from `x[n_rows, n_embd]`; moves the slots of the ubatch's parts on.
    fn forward(
        &self,
        cx: &mut BlockCx<'_>,
        state: &mut BlockState,
        x: &ActRows<'_>,
        out: &mut [f32],
    ) {
        let slots = state.slots();
        let n = x.n_rows();
        let shape = self.ssd.shape();
        let (n_inner, channels) = (shape.n_inner(), self.conv.channels());
        let mut z = cx.scratch.take(n * n_inner);
        let mut raw = cx.scratch.take(n * channels);
        let mut dt = cx.scratch.take(n * shape.n_head);
        let mut jobs = vec![self.z.job(x, &mut z), self.xbc.job(x, &mut raw)];
        if let Steps::Input(w) = &self.steps {
            jobs.push(w.job(x, &mut dt));
        }
        cx.project(&mut jobs);
        drop(jobs);
        let parts = SlotStates::parts(cx.parts);
        let (conv_states, scan_states) = slots.split();
        let mut xbc = cx.scratch.take(raw.len());
        let raw_columns = Columns { data: &raw, stride: channels, first_col: 0 };
        cx.compute.conv(&self.conv, &parts, conv_states, raw_columns, &mut xbc);
        let of_x = self.steps.of_x(cx, &xbc, shape.n_bc(), &mut dt);
        let columns = |first_col| Columns { data: &xbc, stride: channels, first_col };
        let apart = |data| Columns { data, stride: shape.n_bc(), first_col: 0 };
        let (b, c) = match &of_x {
            Some([b, c]) => (apart(b), apart(c)),
            None => (columns(n_inner), columns(n_inner + shape.n_bc())),
        };
        let dt_columns = Columns { data: &dt, stride: shape.n_head, first_col: 0 };
        let input = SsdInput { x: columns(0), b, c, dt: dt_columns };
        let mut y = cx.scratch.take(n * n_inner);
        cx.compute.ssd(&self.ssd, &parts, scan_states, input, &mut y);
        cx.compute.silu_mul_inplace(&mut y, &z);
        if let Some((weights, eps)) = &self.norm {
            cx.compute.group_rms_norm(&mut y, weights, n_inner / shape.n_group, *eps);
        }
        self.output.forward(cx, &y, out);
    }
}

impl Mamba2 {
    /// The projections of the block's input.
    fn of_input(&self) -> impl Iterator<Item = &Linear> {
        let steps = match &self.steps {
            Steps::Input(dt) => Some(dt),
            Steps::OfX { .. } => None,
        };
        [&self.z, &self.xbc].into_iter().chain(steps)
    }
}

impl Steps {
    /// B and C (`[n, n_bc]` each) from the convolved `x[n, n_inner]`, where they come from it; `dt[n, n_head]` is filled
    /// then too.
    fn of_x(
        &self,
        cx: &mut BlockCx<'_>,
        x: &[f32],
        n_bc: usize,
        dt: &mut [f32],
    ) -> Option<[Buffer; 2]> {
        let Self::OfX { select, norms, eps, up } = self else { return None };
        let n = x.len() / select.cols();
        let all = project(cx, select, x);
        let part = |cx: &mut BlockCx<'_>, i: usize, width: usize| {
            let mut part = cx.scratch.take(n * width);
            copy_columns(&all, select.rows(), i * n_bc, width, &mut part);
            cx.compute.rms_norm_inplace(&mut part, &norms[i], *eps);
            part
        };
        let (b, c, low) = (part(cx, 0, n_bc), part(cx, 1, n_bc), part(cx, 2, up.cols()));
        up.forward(cx, &low, dt);
        Some([b, c])
    }
}

/// The ways to z and to what the convolution runs over, and where time steps come from.
fn load_inputs(
    spec: &Mamba2Spec,
    stem: &str,
    n_embd: usize,
    loader: &mut WeightLoader<'_>,
) -> Result<(Linear, Linear, Steps), ModelError> {
    let shape = spec.shape;
    let (n_inner, n_head) = (shape.n_inner(), shape.n_head);
    let name = |part: &str| format!("{stem}.ssm_{part}");
    let Some(low_rank) = &spec.low_rank else {
        let rows = [n_inner, spec.conv_channels(), n_head];
        let [z, xbc, dt] = Linear::row_blocks(loader, &name("in.weight"), rows, n_embd)?;
        return Ok((z, xbc, Steps::Input(dt)));
    };
    // Each head has rows for z, then rows for x.
    let d = shape.head_dim;
    let of_heads = |start: usize| -> Vec<usize> {
        (0..n_head).flat_map(|h| (0..d).map(move |i| h * 2 * d + start + i)).collect()
    };
    let rows = [of_heads(0), of_heads(d)];
    let [z, x] = Linear::split(loader, &name("in.weight"), 2 * n_inner, n_embd, rows)?;
    let (n_state, width) = (shape.n_bc(), low_rank.width);
    let mut norm = |of: &str, n| loader.vector(&name(&format!("{of}_norm")), n);
    let norms = [norm("b", n_state)?, norm("c", n_state)?, norm("dt", width)?];
    let select = Linear::matrix(loader, &name("x.weight"), 2 * n_state + width, n_inner)?;
    let up = Linear::matrix(loader, &name("dt.weight"), n_head, width)?;
    Ok((z, x, Steps::OfX { select, norms, eps: low_rank.eps, up }))
}

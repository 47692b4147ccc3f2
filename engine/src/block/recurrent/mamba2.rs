//! The Mamba-2 mixer (arXiv 2405.21060, section 7). It consists of projections, a causal convolution over x, B and C,
//! the state space recurrence, a gate, an optional norm by groups, and the output projection.
//!
//! PLaMo 2 has the convolution over x alone, and makes B, C and the time steps of what comes out of it.

use crate::block::linear::Linear;
use crate::block::{Block, BlockCx};
use crate::device::Rows;
use crate::ops::{Conv, ConvRows, Ssd, SsdInput, SsdScan, Vector};
use crate::spec::{Mamba2Spec, ModelError};
use crate::state::{BlockState, scan_parts};
use crate::weights::WeightLoader;

/// Weights of one mixer.
pub struct Mamba2 {
    /// To the gate z, `[n_inner, n_embd]`.
    z: Linear,
    /// To what the convolution runs over, `[conv.channels, n_embd]`.
    xbc: Linear,
    steps: Steps,
    conv: Conv,
    ssd: Ssd,
    /// Weights `[n_group, n_inner / n_group]` and epsilon of the norm after the gate.
    norm: Option<(Vector, f32)>,
    output: Linear,
}

/// Source of the time steps.
enum Steps {
    /// The block's input, `[n_head, n_embd]`; B and C stand beside x.
    Input(Linear),
    /// x behind its convolution, as B and C do.
    OfX {
        /// To B, C and narrow rows, `[2 * n_state + width, n_inner]`.
        select: Linear,
        /// Weights of their norms.
        norms: Box<[Vector; 3]>,
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

    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let slots = state.slots();
        let shape = &self.ssd.shape;
        let (n_inner, channels) = (shape.n_inner(), self.conv.channels);
        let weights = [Some(&self.z), Some(&self.xbc), self.steps.of_input()];
        let [z, raw, dt] = cx.project_some(x, weights);
        let [z, raw] = [z, raw].map(Option::unwrap_or_default);
        let parts = scan_parts(cx.parts);
        let (conv_states, scan_states) = slots.split();
        let mut xbc = cx.scratch.take(x.n_rows(), channels);
        cx.device.run(ConvRows {
            conv: &self.conv,
            parts: &parts,
            states: conv_states.view_mut(),
            at: self.conv.alone(),
            x: raw.columns(0),
            out: xbc.view_mut(),
        });
        let of_x = self.steps.of_x(cx, &xbc, shape.n_bc());
        let (b, c) = match &of_x {
            Some([b, c, _]) => (b.columns(0), c.columns(0)),
            None => (xbc.columns(n_inner), xbc.columns(n_inner + shape.n_bc())),
        };
        let dt = of_x.as_ref().map(|[_, _, dt]| dt).or(dt.as_ref());
        let dt = dt.expect("steps come from the input or from x").columns(0);
        let mut y = cx.scratch.take(x.n_rows(), n_inner);
        cx.device.run(SsdScan {
            ssd: &self.ssd,
            parts: &parts,
            states: scan_states.view_mut(),
            input: SsdInput { x: xbc.columns(0), b, c, dt },
            out: y.view_mut(),
        });
        cx.device.silu_mul_inplace(&mut y, &z);
        if let Some((weights, eps)) = &self.norm {
            cx.device.group_rms_norm(&mut y, weights, n_inner / shape.n_group, *eps);
        }
        self.output.forward(cx, &y)
    }
}

impl Mamba2 {
    /// The projections of the block's input.
    fn of_input(&self) -> impl Iterator<Item = &Linear> {
        [&self.z, &self.xbc].into_iter().chain(self.steps.of_input())
    }
}

impl Steps {
    /// The projection of the block's input to them.
    fn of_input(&self) -> Option<&Linear> {
        match self {
            Self::Input(dt) => Some(dt),
            Self::OfX { .. } => None,
        }
    }

    /// B, C (`[n, n_bc]` each) and time steps `[n, n_head]` from the convolved `x[n, n_inner]`, where they come from it.
    fn of_x(&self, cx: &BlockCx<'_>, x: &Rows, n_bc: usize) -> Option<[Rows; 3]> {
        let Self::OfX { select, norms, eps, up } = self else { return None };
        let all = select.forward(cx, x);
        let part = |i: usize, width: usize| {
            let mut part = cx.device.columns_of(cx.scratch, &all, i * n_bc, width);
            cx.device.rms_norm_inplace(&mut part, &norms[i], *eps);
            part
        };
        let [b, c, low] = [part(0, n_bc), part(1, n_bc), part(2, up.cols())];
        Some([b, c, up.forward(cx, &low)])
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
    let norms = Box::new([norm("b", n_state)?, norm("c", n_state)?, norm("dt", width)?]);
    let select = Linear::matrix(loader, &name("x.weight"), 2 * n_state + width, n_inner)?;
    let up = Linear::matrix(loader, &name("dt.weight"), n_head, width)?;
    Ok((z, x, Steps::OfX { select, norms, eps: low_rank.eps, up }))
}

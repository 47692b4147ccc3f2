//! The Mamba mixer (arXiv 2312.00752): projection, causal convolution, selective scan, gate, projection.
//!
//! Jamba (arXiv 2403.19887) and FalconMamba (arXiv 2410.05355) also norm Δ, B and C.

use crate::block::linear::Linear;
use crate::block::{Block, BlockCx};
use crate::device::Rows;
use crate::ops::{Conv, ConvRows, MambaRows, MambaScan, MambaWeights, Vector};
use crate::spec::{MambaSpec, ModelError};
use crate::state::{BlockState, scan_parts};
use crate::weights::WeightLoader;

/// Weights of one Mamba mixer; `d` is the inner width.
pub struct Mamba {
    spec: MambaSpec,
    /// To inputs and gates, `[2 d, n_embd]`.
    input: Linear,
    conv: Conv,
    /// To the low-rank Δ, B and C, `[dt_rank + 2 n_state, d]`.
    select: Linear,
    /// To Δ, `[d, dt_rank]`.
    dt: Linear,
    /// Weights of the norms of Δ, B and C.
    norms: Option<([Vector; 3], f32)>,
    scan: MambaWeights,
    output: Linear,
}

impl Mamba {
    /// Loads `<stem>.ssm_*`.
    pub fn load(
        spec: &MambaSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let MambaSpec { d_inner, n_state, dt_rank, conv_taps, .. } = *spec;
        let name = |part: &str| format!("{stem}.ssm_{part}");
        let taps = loader.values(&name("conv1d.weight"), &[conv_taps, d_inner])?;
        let bias = loader.vector(&name("conv1d.bias"), d_inner)?;
        let mut norm = |part: &str, n: usize, weighted: bool| {
            if weighted {
                loader.vector(&name(&format!("{part}_norm.weight")), n)
            } else {
                Ok(vec![1.0; n].into())
            }
        };
        let norms = match &spec.norms {
            None => None,
            Some(norms) => Some((
                [
                    norm("dt", dt_rank, norms.weighted)?,
                    norm("b", n_state, norms.weighted)?,
                    norm("c", n_state, norms.weighted)?,
                ],
                norms.eps,
            )),
        };
        let a = loader.values(&name("a"), &[n_state, d_inner])?;
        let dt_bias = loader.vector(&name("dt.bias"), d_inner)?;
        let d = loader.vector(&name("d"), d_inner)?;
        let select = dt_rank + 2 * n_state;
        Ok(Self {
            input: Linear::matrix(loader, &name("in.weight"), 2 * d_inner, n_embd)?,
            conv: Conv::new(&taps, conv_taps, Some(bias), true),
            select: Linear::matrix(loader, &name("x.weight"), select, d_inner)?,
            dt: Linear::matrix(loader, &name("dt.weight"), d_inner, dt_rank)?,
            norms,
            scan: MambaWeights::new(&a, &dt_bias, &d),
            output: Linear::matrix(loader, &name("out.weight"), n_embd, d_inner)?,
            spec: spec.clone(),
        })
    }
}

impl Block for Mamba {
    fn nbytes(&self) -> usize {
        [&self.input, &self.select, &self.dt, &self.output].iter().map(|w| w.nbytes()).sum()
    }

    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let states = state.slots();
        let (n, d_inner) = (x.n_rows(), self.spec.d_inner);
        let both = self.input.forward(cx, x);
        let parts = scan_parts(cx.parts);
        let (conv_state, scan_state) = states.split();
        let mut u = cx.scratch.take(n, d_inner);
        cx.device.run(ConvRows {
            conv: &self.conv,
            parts: &parts,
            states: conv_state.view_mut(),
            at: self.conv.alone(),
            x: both.columns(0),
            out: u.view_mut(),
        });
        let [dt, b, c] = self.select(cx, &u);
        let mut y = cx.scratch.take(n, d_inner);
        cx.device.run(MambaScan {
            weights: &self.scan,
            parts: &parts,
            states: scan_state.view_mut(),
            rows: MambaRows {
                u: u.view(),
                dt: dt.view(),
                b: b.view(),
                c: c.view(),
                gate: both.columns(d_inner),
            },
            out: y.view_mut(),
        });
        self.output.forward(cx, &y)
    }
}

impl Mamba {
    /// Δ `[n, d]`, B and C `[n, n_state]` of the convolved inputs `u[n, d]`.
    fn select(&self, cx: &BlockCx<'_>, u: &Rows) -> [Rows; 3] {
        let MambaSpec { n_state, dt_rank, .. } = self.spec;
        let all = self.select.forward(cx, u);
        let mut low = cx.device.columns_of(cx.scratch, &all, 0, dt_rank);
        let mut b = cx.device.columns_of(cx.scratch, &all, dt_rank, n_state);
        let mut c = cx.device.columns_of(cx.scratch, &all, dt_rank + n_state, n_state);
        if let Some((weights, eps)) = &self.norms {
            for (part, weight) in [&mut low, &mut b, &mut c].into_iter().zip(weights) {
                cx.device.rms_norm_inplace(part, weight, *eps);
            }
        }
        [self.dt.forward(cx, &low), b, c]
    }
}

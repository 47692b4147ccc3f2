//! The gated short convolution of LFM2 (arXiv 2511.23404): `out(c ⊙ conv(b ⊙ x))`. One projection gives `b`,
//! `c` and `x`.

use crate::block::linear::Linear;
use crate::block::{Block, BlockCx};
use crate::device::Rows;
use crate::ops::{Conv, ConvRows};
use crate::spec::{ModelError, ShortConvSpec};
use crate::state::{BlockState, scan_parts};
use crate::weights::WeightLoader;

/// Weights of one short convolution.
pub struct ShortConv {
    /// To `b`, `c` and `x`, `[3 n_embd, n_embd]`.
    input: Linear,
    conv: Conv,
    output: Linear,
}

impl ShortConv {
    /// Loads `<stem>.shortconv.{in_proj,conv,out_proj}`.
    pub fn load(
        spec: &ShortConvSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.shortconv.{part}.weight");
        let taps = loader.values(&name("conv"), &[spec.conv_taps, n_embd])?;
        Ok(Self {
            input: Linear::matrix(loader, &name("in_proj"), 3 * n_embd, n_embd)?,
            conv: Conv::new(&taps, spec.conv_taps, None, false),
            output: Linear::matrix(loader, &name("out_proj"), n_embd, n_embd)?,
        })
    }
}

impl Block for ShortConv {
    fn nbytes(&self) -> usize {
        self.input.nbytes() + self.output.nbytes()
    }

    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let states = state.slots();
        let d = x.cols();
        let all = self.input.forward(cx, x);
        let [mut b, mut c, mut x] =
            [0, 1, 2].map(|i| cx.device.columns_of(cx.scratch, &all, i * d, d));
        cx.device.mul(&mut b, &x);
        let parts = scan_parts(cx.parts);
        let (conv_state, _) = states.split();
        cx.device.run(ConvRows {
            conv: &self.conv,
            parts: &parts,
            states: conv_state.view_mut(),
            at: self.conv.alone(),
            x: b.columns(0),
            out: x.view_mut(),
        });
        cx.device.mul(&mut c, &x);
        self.output.forward(cx, &c)
    }
}

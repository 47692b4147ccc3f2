//! A low-rank branch in parallel to attention (LAuReL, arXiv 2411.07501, section 2.2): `norm(laurel_r laurel_l x) + x` of
//! the rows that attention reads. Its residual adds the result to the stream.

use super::linear::Linear;
use super::{Block, BlockCx};
use crate::device::Rows;
use crate::kernels::Vector;
use crate::spec::{LaurelSpec, ModelError};
use crate::state::BlockState;
use crate::weights::WeightLoader;

/// Weights of one such way.
pub struct Laurel {
    /// `[rank, n_embd]`.
    narrow: Linear,
    /// `[n_embd, rank]`.
    wide: Linear,
    /// `[n_embd]`.
    norm: Vector,
    eps: f32,
}

impl Laurel {
    /// Loads `<stem>.laurel_{l,r,post_norm}`.
    pub fn load(
        spec: &LaurelSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.laurel_{part}.weight");
        Ok(Self {
            narrow: Linear::matrix(loader, &name("l"), spec.rank, n_embd)?,
            wide: Linear::matrix(loader, &name("r"), n_embd, spec.rank)?,
            norm: loader.vector(&name("post_norm"), n_embd)?,
            eps: spec.eps,
        })
    }
}

impl Block for Laurel {
    fn nbytes(&self) -> usize {
        self.narrow.nbytes() + self.wide.nbytes()
    }

    fn forward(&self, cx: &mut BlockCx<'_>, _: &mut BlockState, x: &Rows) -> Rows {
        let narrow = self.narrow.forward(cx, x);
        let mut out = self.wide.forward(cx, &narrow);
        cx.device.rms_norm_inplace(&mut out, &self.norm, self.eps);
        cx.device.add(&mut out, x);
        out
    }
}

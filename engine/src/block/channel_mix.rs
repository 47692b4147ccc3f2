//! RWKV-7's channel mixing block (arXiv 2503.14456, section 4.2): an FFN with squared ReLUs. Its input is a
//! mixture of a row and the row before it.

use super::{BlockCx, TokenShift, project};
use crate::arch::ChannelMixSpec;
use crate::error::ModelError;
use crate::kernels::{ActRows, PackedMatrix};
use crate::state::SlotStates;
use crate::weights::WeightLoader;

/// Weights of one channel mixing block.
pub struct ChannelMix {
    shift: TokenShift,
    lerp: Vec<f32>,
    key: PackedMatrix,
    value: PackedMatrix,
}

impl ChannelMix {
    /// Loads `<stem>.channel_mix_{lerp_k,key,value}`.
    pub fn load(
        spec: &ChannelMixSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.channel_mix_{part}.weight");
        Ok(Self {
            shift: TokenShift::new(n_embd),
            lerp: loader.vector(&name("lerp_k"), n_embd)?,
            key: loader.matrix(&name("key"), spec.n_ff, n_embd)?,
            value: loader.matrix(&name("value"), n_embd, spec.n_ff)?,
        })
    }

    /// `out[n_rows, n_embd]` from `x[n_rows, n_embd]`; the state moves on.
    pub fn forward(
        &self,
        cx: &mut BlockCx<'_>,
        states: &mut SlotStates,
        x: &ActRows<'_>,
        out: &mut [f32],
    ) {
        let x = x.values();
        let parts = SlotStates::parts(cx.parts);
        let before = self.shift.before(cx, &parts, states.split().0, x);
        let mut lean = cx.scratch.take(x.len());
        lean.copy_from_slice(x);
        cx.compute.lerp(&mut lean, &before, &self.lerp);
        let mut k = project(cx, &self.key, &lean);
        cx.compute.relu_squared(&mut k);
        let y = project(cx, &self.value, &k);
        out.copy_from_slice(&y);
        cx.scratch.give_all([before, lean, k, y]);
    }

    /// Bytes of all matrices.
    pub fn nbytes(&self) -> usize {
        self.key.nbytes() + self.value.nbytes()
    }
}

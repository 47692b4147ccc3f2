//! The channel mixing block of RWKV-7 (arXiv 2503.14456, section 4.2) and RWKV-6 (arXiv 2404.05892, section 4.1): an
//! FFN with squared ReLUs, in RWKV-6 with a gate. Its inputs are mixtures of a row and the row before it.

use crate::block::linear::Linear;
use crate::block::{Block, BlockCx, TokenShift};
use crate::device::Rows;
use crate::kernels::Vector;
use crate::spec::{ChannelMixSpec, ModelError};
use crate::state::{BlockState, scan_parts};
use crate::weights::WeightLoader;

/// Weights of one channel mixing block.
pub struct ChannelMix {
    shift: TokenShift,
    lerp: Vector,
    key: Linear,
    value: Linear,
    /// Share of the previous row in the gate's input, and the gate's matrix; `None`: no gate.
    gate: Option<(Vector, Linear)>,
}

impl ChannelMix {
    /// Loads `<stem>.channel_mix_{lerp_k,key,value}`, and `channel_mix_{lerp_r,receptance}` of a block with a gate.
    pub fn load(
        spec: &ChannelMixSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}.channel_mix_{part}.weight");
        let gate = if spec.gated {
            Some((
                loader.vector(&name("lerp_r"), n_embd)?,
                Linear::matrix(loader, &name("receptance"), n_embd, n_embd)?,
            ))
        } else {
            None
        };
        Ok(Self {
            gate,
            shift: TokenShift::new(n_embd),
            lerp: loader.vector(&name("lerp_k"), n_embd)?,
            key: Linear::matrix(loader, &name("key"), spec.n_ff, n_embd)?,
            value: Linear::matrix(loader, &name("value"), n_embd, spec.n_ff)?,
        })
    }
}

impl Block for ChannelMix {
    fn nbytes(&self) -> usize {
        let gate = self.gate.as_ref().map_or(0, |(_, matrix)| matrix.nbytes());
        self.key.nbytes() + self.value.nbytes() + gate
    }

    fn forward(&self, cx: &mut BlockCx<'_>, state: &mut BlockState, x: &Rows) -> Rows {
        let states = state.slots();
        let parts = scan_parts(cx.parts);
        let before = self.shift.before(cx.device, cx.scratch, &parts, states.split().0, x);
        let mut lean = cx.scratch.copy_of(x);
        cx.device.lerp(&mut lean, &before, &self.lerp);
        let mut k = self.key.forward(cx, &lean);
        cx.device.relu_squared(&mut k);
        let mut out = self.value.forward(cx, &k);
        if let Some((lerp, matrix)) = &self.gate {
            lean.set(x);
            cx.device.lerp(&mut lean, &before, lerp);
            let gate = matrix.forward(cx, &lean);
            cx.device.sigmoid_mul(&mut out, &gate);
        }
        out
    }
}

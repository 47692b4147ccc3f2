//! Mixers that run the delta rule, as data: Kimi delta attention and the gated delta net.

use crate::state::StateSpec;
use brigade_shapes::{Decay, DeltaShape, KeyHeads};

/// Kimi delta attention, a mixer with the delta rule and a decay for each key channel.
#[derive(Clone, Debug, PartialEq)]
pub struct KdaSpec {
    /// Number of heads.
    pub n_head: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Taps of the convolutions.
    pub conv_taps: usize,
    /// Epsilon of the norm of the heads' outputs.
    pub eps: f32,
    /// Epsilon of the norms that make queries and keys as long as 1.
    pub unit_eps: f32,
    /// Least log decay of a step, below 0. The log decay is then this bound times a sigmoid of the forget
    /// gate. `None`: it is a softplus of the forget gate, without bound.
    pub decay_bound: Option<f32>,
    /// Matrices that make the gates.
    pub gates: KdaGates,
}

/// Matrices to the forget gate and to the output gate of Kimi delta attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KdaGates {
    /// Two each, through the width of a head (`ssm_f_a`, `ssm_f_b`; `ssm_g_a`, `ssm_g_b`).
    LowRank,
    /// Two to the forget gate, one to the output gate (`ssm_g`).
    FullOutput,
    /// One each (`ssm_f_a`, `ssm_g_a`). Rates are kept without their sign.
    Full,
}

impl KdaSpec {
    /// Sizes of its delta rule.
    #[inline]
    pub fn shape(&self) -> DeltaShape {
        DeltaShape {
            n_head: self.n_head,
            n_key_head: self.n_head,
            key_heads: KeyHeads::Grouped,
            d_k: self.head_dim,
            d_v: self.head_dim,
            decay: Decay::PerChannel,
        }
    }

    /// Sizes of the block's state of a sequence.
    pub fn state(&self) -> StateSpec {
        let conv = 3 * (self.conv_taps - 1) * self.n_head * self.head_dim;
        StateSpec::Slot { conv, scan: self.shape().state_len() }
    }
}

/// A gated delta net.
#[derive(Clone, Debug, PartialEq)]
pub struct DeltaNetSpec {
    /// Sizes of its delta rule; keys and values are equally wide.
    pub shape: DeltaShape,
    /// Taps of the convolution.
    pub conv_taps: usize,
    /// Epsilon of its norms.
    pub eps: f32,
    /// Activation of the output's gate.
    pub gate: OutputGate,
}

/// Activation of an output's gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputGate {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
}

impl DeltaNetSpec {
    /// Sizes of the block's state of a sequence.
    pub fn state(&self) -> StateSpec {
        let DeltaShape { n_head, n_key_head, d_k, d_v, .. } = self.shape;
        let conv = (self.conv_taps - 1) * (2 * n_key_head * d_k + n_head * d_v);
        StateSpec::Slot { conv, scan: self.shape.state_len() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_as_large_as_kimi_linear_48b_and_k3_have_them() {
        let mut kda = KdaSpec {
            n_head: 32,
            head_dim: 128,
            conv_taps: 4,
            eps: 1e-5,
            unit_eps: 1e-5,
            decay_bound: None,
            gates: KdaGates::LowRank,
        };
        assert_eq!(kda.state(), StateSpec::Slot { conv: 36_864, scan: 524_288 });
        kda.n_head = 96;
        assert_eq!(kda.state(), StateSpec::Slot { conv: 110_592, scan: 1_572_864 });
    }
}

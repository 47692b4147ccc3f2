//! Ops of every value or row, by their name: functions, activations and bounds, norms, greatest values, and moves of rows.

pub(crate) mod best_scores;
pub(super) mod copy_parts;
pub(super) mod elementwise;
pub(super) mod f64_sums;
pub(super) mod gates;
pub(super) mod greatest;
pub(super) mod joining;
pub(super) mod moves;
pub(super) mod norms;
pub(super) mod stream_weights;
pub(super) mod weighted_sums;

use brigade_ops::{Combine, Function, Map, Norm, NormBy, Pairing};

use crate::device::Gpu;
use crate::operands::OnGpu;

impl Gpu {
    /// Records the op [`Map`].
    pub(super) fn run_map(&self, Map { x, with }: Map<'_, OnGpu>) {
        match with {
            Function::Constant(value) => self.fill(x, value),
            Function::Scale(s) => self.scale(x, s),
            Function::Silu => self.silu(x),
            Function::Sigmoid => self.sigmoid(x),
            Function::Sqrt => self.sqrt(x),
            Function::Tanh => self.tanh(x),
            Function::PlainTanh => self.plain_tanh(x),
            Function::Softplus => self.softplus(x),
            Function::Relu => self.relu(x),
            Function::ReluSquared => self.relu_squared(x),
            Function::Gelu => self.gelu(x),
            Function::Xielu(shape) => self.xielu(x, shape),
            Function::Softcap(cap) => self.softcap(x, cap),
            Function::Clamp(bound) => self.clamp(x, bound),
        }
    }

    /// Records the op [`Combine`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub(super) fn run_combine(&self, Combine { x, y, with }: Combine<'_, OnGpu>) {
        match with {
            Pairing::Add => self.add(x, y),
            Pairing::AddScaled(s) => self.add_scaled(x, y, s),
            Pairing::Mul => self.mul(x, y),
            Pairing::AddRow => self.add_bias(x, y),
            Pairing::MulRow => self.scale_columns(x, y),
            Pairing::MulColumn(d) => self.scale_rows(x, d, y),
            Pairing::Silu => self.silu_mul_inplace(x, y),
            Pairing::Sigmoid => self.sigmoid_mul(x, y),
            Pairing::Gelu => self.gelu_mul(x, y),
            Pairing::Relu => self.relu_mul(x, y),
            Pairing::Clamped(clamp) => self.clamped_swiglu_mul(x, y, clamp.alpha, clamp.limit),
            Pairing::Limited(limit) => self.limited_swiglu_mul(x, y, limit.limit, limit.gate),
            Pairing::Bounded(bounds) => self.bounded_gate_mul(x, y, bounds.gate, bounds.linear),
        }
    }

    /// Records the op [`Norm`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub(super) fn run_norm(&self, Norm { x, d, eps, by }: Norm<'_, OnGpu>) {
        match by {
            NormBy::Rms(weights) => self.group_rms_norm(x, weights, d, eps),
            NormBy::Layer(weights, biases) => self.group_layer_norm(x, weights, biases, d, eps),
            NormBy::L2 => self.l2_norm(x, d, eps),
            NormBy::Softmax => self.softmax(x, d),
        }
    }
}

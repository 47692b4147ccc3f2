//! Ops of every value or row, by their name: functions, activations and bounds, sums, greatest values, and moves of rows.

pub(crate) mod bounded_gate;
pub(crate) mod elementwise;
pub(crate) mod f64_sums;
pub(crate) mod gates;
pub(crate) mod greatest;
pub(crate) mod moves;
pub(crate) mod stream_weights;
pub(crate) mod weighted_sums;

use brigade_ops::{Combine, Function, Host, Map, Norm, NormBy, Pairing};

use crate::compute::Compute;

impl Compute {
    /// Runs the op [`Map`].
    pub(super) fn run_map(&self, Map { x, with }: Map<'_, Host>) {
        match with {
            Function::Constant(value) => x.fill(value),
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

    /// Runs the op [`Combine`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub(super) fn run_combine(&self, Combine { x, y, with }: Combine<'_, Host>) {
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
            Pairing::Clamped(clamp) => self.clamped_swiglu_mul(x, y, clamp),
            Pairing::Limited(limit) => self.limited_swiglu_mul(x, y, limit),
            Pairing::Bounded(bounds) => self.bounded_gate_mul(x, y, bounds),
        }
    }

    /// Runs the op [`Norm`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub(super) fn run_norm(&self, Norm { x, d, eps, by }: Norm<'_, Host>) {
        match by {
            NormBy::Rms(weights) => self.group_rms_norm(x, weights, d, eps),
            NormBy::Layer(weights, biases) => self.group_layer_norm(x, weights, biases, d, eps),
            NormBy::L2 => self.l2_norm(x, d, eps),
            NormBy::Softmax => self.softmax(x, d),
        }
    }
}

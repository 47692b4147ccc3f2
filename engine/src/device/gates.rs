//! Products with what becomes of a gate.

use super::{Device, Values, ValuesMut};
use crate::kernels::{GateBounds, SwiGluClamp, SwiGluLimit};

impl Device {
    /// `x *= silu(gate)`.
    pub fn silu_mul_inplace(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        gate: &(impl Values + ?Sized),
    ) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.silu_mul_inplace(x, gate.on_gpu(gpu)),
            None => self.compute.silu_mul_inplace(x.on_host_mut(), gate.on_host()),
        }
    }

    /// `x *= sigmoid(gate)`.
    pub fn sigmoid_mul(&self, x: &mut (impl ValuesMut + ?Sized), gate: &(impl Values + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.sigmoid_mul(x, gate.on_gpu(gpu)),
            None => self.compute.sigmoid_mul(x.on_host_mut(), gate.on_host()),
        }
    }

    /// `x *= gelu(gate)`.
    pub fn gelu_mul(&self, x: &mut (impl ValuesMut + ?Sized), gate: &(impl Values + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.gelu_mul(x, gate.on_gpu(gpu)),
            None => self.compute.gelu_mul(x.on_host_mut(), gate.on_host()),
        }
    }

    /// `x *= max(gate, 0)`.
    pub fn relu_mul(&self, x: &mut (impl ValuesMut + ?Sized), gate: &(impl Values + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.relu_mul(x, gate.on_gpu(gpu)),
            None => self.compute.relu_mul(x.on_host_mut(), gate.on_host()),
        }
    }

    /// [`Compute::clamped_swiglu_mul`](crate::kernels::Compute::clamped_swiglu_mul).
    pub fn clamped_swiglu_mul(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        gates: &(impl Values + ?Sized),
        clamp: SwiGluClamp,
    ) {
        match self.gpu_of(x) {
            Some((gpu, x)) => {
                gpu.clamped_swiglu_mul(x, gates.on_gpu(gpu), clamp.alpha, clamp.limit)
            }
            None => self.compute.clamped_swiglu_mul(x.on_host_mut(), gates.on_host(), clamp),
        }
    }

    /// [`Compute::limited_swiglu_mul`](crate::kernels::Compute::limited_swiglu_mul).
    pub fn limited_swiglu_mul(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        gates: &(impl Values + ?Sized),
        limit: SwiGluLimit,
    ) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.limited_swiglu_mul(x, gates.on_gpu(gpu), limit.limit, limit.gate),
            None => self.compute.limited_swiglu_mul(x.on_host_mut(), gates.on_host(), limit),
        }
    }

    /// [`Compute::bounded_gate_mul`](crate::kernels::Compute::bounded_gate_mul).
    pub fn bounded_gate_mul(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        gates: &(impl Values + ?Sized),
        bounds: GateBounds,
    ) {
        match self.gpu_of(x) {
            Some((gpu, x)) => {
                gpu.bounded_gate_mul(x, gates.on_gpu(gpu), bounds.gate, bounds.linear)
            }
            None => self.compute.bounded_gate_mul(x.on_host_mut(), gates.on_host(), bounds),
        }
    }

    /// [`Compute::decay_factors`](crate::kernels::Compute::decay_factors).
    pub fn decay_factors(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        bias: &(impl Values + ?Sized),
        rates: &(impl Values + ?Sized),
    ) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.decay_factors(x, bias.on_gpu(gpu), rates.on_gpu(gpu)),
            None => self.compute.decay_factors(x.on_host_mut(), bias.on_host(), rates.on_host()),
        }
    }

    /// [`Compute::bounded_decay_factors`](crate::kernels::Compute::bounded_decay_factors).
    pub fn bounded_decay_factors(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        bias: &(impl Values + ?Sized),
        rates: &(impl Values + ?Sized),
        bound: f32,
    ) {
        match self.gpu_of(x) {
            Some((gpu, x)) => {
                gpu.bounded_decay_factors(x, bias.on_gpu(gpu), rates.on_gpu(gpu), bound)
            }
            None => self.compute.bounded_decay_factors(
                x.on_host_mut(),
                bias.on_host(),
                rates.on_host(),
                bound,
            ),
        }
    }
}

//! Products with what becomes of a gate.

use crate::device::{Device, Values, ValuesMut};
use crate::kernels::{GateBounds, SwiGluClamp, SwiGluLimit};
use crate::ops::{Combine, DecayFactors, Pairing};

impl Device {
    /// `x *= silu(gate)`.
    pub fn silu_mul_inplace(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        gate: &(impl Values + ?Sized),
    ) {
        self.run(Combine { x: x.view_mut(), y: gate.view(), with: Pairing::Silu });
    }

    /// `x *= sigmoid(gate)`.
    pub fn sigmoid_mul(&self, x: &mut (impl ValuesMut + ?Sized), gate: &(impl Values + ?Sized)) {
        self.run(Combine { x: x.view_mut(), y: gate.view(), with: Pairing::Sigmoid });
    }

    /// `x *= gelu(gate)`.
    pub fn gelu_mul(&self, x: &mut (impl ValuesMut + ?Sized), gate: &(impl Values + ?Sized)) {
        self.run(Combine { x: x.view_mut(), y: gate.view(), with: Pairing::Gelu });
    }

    /// `x *= max(gate, 0)`.
    pub fn relu_mul(&self, x: &mut (impl ValuesMut + ?Sized), gate: &(impl Values + ?Sized)) {
        self.run(Combine { x: x.view_mut(), y: gate.view(), with: Pairing::Relu });
    }

    /// [`Pairing::Clamped`].
    pub fn clamped_swiglu_mul(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        gates: &(impl Values + ?Sized),
        clamp: SwiGluClamp,
    ) {
        self.run(Combine { x: x.view_mut(), y: gates.view(), with: Pairing::Clamped(clamp) });
    }

    /// [`Pairing::Limited`].
    pub fn limited_swiglu_mul(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        gates: &(impl Values + ?Sized),
        limit: SwiGluLimit,
    ) {
        self.run(Combine { x: x.view_mut(), y: gates.view(), with: Pairing::Limited(limit) });
    }

    /// [`Pairing::Bounded`].
    pub fn bounded_gate_mul(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        gates: &(impl Values + ?Sized),
        bounds: GateBounds,
    ) {
        self.run(Combine { x: x.view_mut(), y: gates.view(), with: Pairing::Bounded(bounds) });
    }

    /// [`DecayFactors`] without a bound.
    pub fn decay_factors(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        bias: &(impl Values + ?Sized),
        rates: &(impl Values + ?Sized),
    ) {
        let (bias, rates) = (bias.view(), rates.view());
        self.run(DecayFactors { x: x.view_mut(), bias, rates, bound: None });
    }

    /// [`DecayFactors`] with a bound.
    pub fn bounded_decay_factors(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        bias: &(impl Values + ?Sized),
        rates: &(impl Values + ?Sized),
        bound: f32,
    ) {
        let (bias, rates) = (bias.view(), rates.view());
        self.run(DecayFactors { x: x.view_mut(), bias, rates, bound: Some(bound) });
    }
}

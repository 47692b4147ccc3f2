//! Ops that take every value by itself, or every row.

use crate::device::{Device, Values, ValuesMut};
use crate::kernels::Xielu;
use crate::ops::{Combine, Function, Lerp, Map, Pairing};

impl Device {
    /// `out += x`.
    pub fn add(&self, out: &mut (impl ValuesMut + ?Sized), x: &(impl Values + ?Sized)) {
        self.run(Combine { x: out.view_mut(), y: x.view(), with: Pairing::Add });
    }

    /// `out += x * s`.
    pub fn add_scaled(
        &self,
        out: &mut (impl ValuesMut + ?Sized),
        x: &(impl Values + ?Sized),
        s: f32,
    ) {
        self.run(Combine { x: out.view_mut(), y: x.view(), with: Pairing::AddScaled(s) });
    }

    /// `x *= s`.
    pub fn scale(&self, x: &mut (impl ValuesMut + ?Sized), s: f32) {
        self.run(Map { x: x.view_mut(), with: Function::Scale(s) });
    }

    /// Multiplies row `r` of `x` (`[n, d]`) by `factors[r]`.
    pub fn scale_rows(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        d: usize,
        factors: &(impl Values + ?Sized),
    ) {
        self.run(Combine { x: x.view_mut(), y: factors.view(), with: Pairing::MulColumn(d) });
    }

    /// Multiplies each row of `x` (`[n, d]`) by `factors` (`[d]`).
    pub fn scale_columns(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        factors: &(impl Values + ?Sized),
    ) {
        self.run(Combine { x: x.view_mut(), y: factors.view(), with: Pairing::MulRow });
    }

    /// `x *= y`.
    pub fn mul(&self, x: &mut (impl ValuesMut + ?Sized), y: &(impl Values + ?Sized)) {
        self.run(Combine { x: x.view_mut(), y: y.view(), with: Pairing::Mul });
    }

    /// Adds `bias` (`[d]`) to each row of `x` (`[n, d]`).
    pub fn add_bias(&self, x: &mut (impl ValuesMut + ?Sized), bias: &(impl Values + ?Sized)) {
        self.run(Combine { x: x.view_mut(), y: bias.view(), with: Pairing::AddRow });
    }

    /// Moves each row of `x` (`[n, d]`) towards that of `to` by the `share` (`[d]`) of each column:
    /// `x += (to - x) * share`.
    pub fn lerp(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        to: &(impl Values + ?Sized),
        share: &(impl Values + ?Sized),
    ) {
        self.run(Lerp { x: x.view_mut(), to: to.view(), share: share.view() });
    }

    /// `x = silu(x)`, where `silu(x) = x / (1 + exp(-x))`.
    pub fn silu(&self, x: &mut (impl ValuesMut + ?Sized)) {
        self.run(Map { x: x.view_mut(), with: Function::Silu });
    }

    /// `x = 1 / (1 + exp(-x))`.
    pub fn sigmoid(&self, x: &mut (impl ValuesMut + ?Sized)) {
        self.run(Map { x: x.view_mut(), with: Function::Sigmoid });
    }

    /// `x = sqrt(x)`.
    pub fn sqrt(&self, x: &mut (impl ValuesMut + ?Sized)) {
        self.run(Map { x: x.view_mut(), with: Function::Sqrt });
    }

    /// `x = tanh(x)`.
    pub fn tanh(&self, x: &mut (impl ValuesMut + ?Sized)) {
        self.run(Map { x: x.view_mut(), with: Function::Tanh });
    }

    /// [`Function::PlainTanh`].
    pub fn plain_tanh(&self, x: &mut (impl ValuesMut + ?Sized)) {
        self.run(Map { x: x.view_mut(), with: Function::PlainTanh });
    }

    /// `x = ln(1 + exp(x))`.
    pub fn softplus(&self, x: &mut (impl ValuesMut + ?Sized)) {
        self.run(Map { x: x.view_mut(), with: Function::Softplus });
    }

    /// `x = max(x, 0)`.
    pub fn relu(&self, x: &mut (impl ValuesMut + ?Sized)) {
        self.run(Map { x: x.view_mut(), with: Function::Relu });
    }

    /// `x = max(x, 0)²`.
    pub fn relu_squared(&self, x: &mut (impl ValuesMut + ?Sized)) {
        self.run(Map { x: x.view_mut(), with: Function::ReluSquared });
    }

    /// [`Function::Gelu`].
    pub fn gelu(&self, x: &mut (impl ValuesMut + ?Sized)) {
        self.run(Map { x: x.view_mut(), with: Function::Gelu });
    }

    /// [`Function::Xielu`].
    pub fn xielu(&self, x: &mut (impl ValuesMut + ?Sized), shape: Xielu) {
        self.run(Map { x: x.view_mut(), with: Function::Xielu(shape) });
    }

    /// `x = cap * tanh(x / cap)`.
    pub fn softcap(&self, x: &mut (impl ValuesMut + ?Sized), cap: f32) {
        self.run(Map { x: x.view_mut(), with: Function::Softcap(cap) });
    }

    /// Keeps values within `-bound..=bound`.
    pub fn clamp(&self, x: &mut (impl ValuesMut + ?Sized), bound: f32) {
        self.run(Map { x: x.view_mut(), with: Function::Clamp(bound) });
    }
}

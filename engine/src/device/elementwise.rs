//! Ops that take every value by itself, or every row.

use super::{Device, Values, ValuesMut};
use crate::kernels::Xielu;

impl Device {
    /// `out += x`.
    pub fn add(&self, out: &mut (impl ValuesMut + ?Sized), x: &(impl Values + ?Sized)) {
        match self.gpu_of(out) {
            Some((gpu, out)) => gpu.add(out, x.on_gpu(gpu)),
            None => self.compute.add(out.on_host_mut(), x.on_host()),
        }
    }

    /// `out += x * s`.
    pub fn add_scaled(
        &self,
        out: &mut (impl ValuesMut + ?Sized),
        x: &(impl Values + ?Sized),
        s: f32,
    ) {
        match self.gpu_of(out) {
            Some((gpu, out)) => gpu.add_scaled(out, x.on_gpu(gpu), s),
            None => self.compute.add_scaled(out.on_host_mut(), x.on_host(), s),
        }
    }

    /// `x *= s`.
    pub fn scale(&self, x: &mut (impl ValuesMut + ?Sized), s: f32) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.scale(x, s),
            None => self.compute.scale(x.on_host_mut(), s),
        }
    }

    /// Multiplies row `r` of `x` (`[n, d]`) by `factors[r]`.
    pub fn scale_rows(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        d: usize,
        factors: &(impl Values + ?Sized),
    ) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.scale_rows(x, d, factors.on_gpu(gpu)),
            None => self.compute.scale_rows(x.on_host_mut(), d, factors.on_host()),
        }
    }

    /// Multiplies each row of `x` (`[n, d]`) by `factors` (`[d]`).
    pub fn scale_columns(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        factors: &(impl Values + ?Sized),
    ) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.scale_columns(x, factors.on_gpu(gpu)),
            None => self.compute.scale_columns(x.on_host_mut(), factors.on_host()),
        }
    }

    /// `x *= y`.
    pub fn mul(&self, x: &mut (impl ValuesMut + ?Sized), y: &(impl Values + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.mul(x, y.on_gpu(gpu)),
            None => self.compute.mul(x.on_host_mut(), y.on_host()),
        }
    }

    /// Adds `bias` (`[d]`) to each row of `x` (`[n, d]`).
    pub fn add_bias(&self, x: &mut (impl ValuesMut + ?Sized), bias: &(impl Values + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.add_bias(x, bias.on_gpu(gpu)),
            None => self.compute.add_bias(x.on_host_mut(), bias.on_host()),
        }
    }

    /// Moves each row of `x` (`[n, d]`) towards that of `to` by the `share` (`[d]`) of each column:
    /// `x += (to - x) * share`.
    pub fn lerp(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        to: &(impl Values + ?Sized),
        share: &(impl Values + ?Sized),
    ) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.lerp(x, to.on_gpu(gpu), share.on_gpu(gpu)),
            None => self.compute.lerp(x.on_host_mut(), to.on_host(), share.on_host()),
        }
    }

    /// `x = silu(x)`, where `silu(x) = x / (1 + exp(-x))`.
    pub fn silu(&self, x: &mut (impl ValuesMut + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.silu(x),
            None => self.compute.silu(x.on_host_mut()),
        }
    }

    /// `x = 1 / (1 + exp(-x))`.
    pub fn sigmoid(&self, x: &mut (impl ValuesMut + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.sigmoid(x),
            None => self.compute.sigmoid(x.on_host_mut()),
        }
    }

    /// `x = sqrt(x)`.
    pub fn sqrt(&self, x: &mut (impl ValuesMut + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.sqrt(x),
            None => x.on_host_mut().iter_mut().for_each(|x| *x = x.sqrt()),
        }
    }

    /// `x = tanh(x)`.
    pub fn tanh(&self, x: &mut (impl ValuesMut + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.tanh(x),
            None => self.compute.tanh(x.on_host_mut()),
        }
    }

    /// [`Compute::plain_tanh`](crate::kernels::Compute::plain_tanh).
    pub fn plain_tanh(&self, x: &mut (impl ValuesMut + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.plain_tanh(x),
            None => self.compute.plain_tanh(x.on_host_mut()),
        }
    }

    /// `x = ln(1 + exp(x))`.
    pub fn softplus(&self, x: &mut (impl ValuesMut + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.softplus(x),
            None => self.compute.softplus(x.on_host_mut()),
        }
    }

    /// `x = max(x, 0)`.
    pub fn relu(&self, x: &mut (impl ValuesMut + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.relu(x),
            None => self.compute.relu(x.on_host_mut()),
        }
    }

    /// `x = max(x, 0)²`.
    pub fn relu_squared(&self, x: &mut (impl ValuesMut + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.relu_squared(x),
            None => self.compute.relu_squared(x.on_host_mut()),
        }
    }

    /// [`Compute::gelu`](crate::kernels::Compute::gelu).
    pub fn gelu(&self, x: &mut (impl ValuesMut + ?Sized)) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.gelu(x),
            None => self.compute.gelu(x.on_host_mut()),
        }
    }

    /// [`Compute::xielu`](crate::kernels::Compute::xielu).
    pub fn xielu(&self, x: &mut (impl ValuesMut + ?Sized), shape: Xielu) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.xielu(x, shape),
            None => self.compute.xielu(x.on_host_mut(), shape),
        }
    }

    /// `x = cap * tanh(x / cap)`.
    pub fn softcap(&self, x: &mut (impl ValuesMut + ?Sized), cap: f32) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.softcap(x, cap),
            None => self.compute.softcap(x.on_host_mut(), cap),
        }
    }

    /// Keeps values within `-bound..=bound`.
    pub fn clamp(&self, x: &mut (impl ValuesMut + ?Sized), bound: f32) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.clamp(x, bound),
            None => self.compute.clamp(x.on_host_mut(), bound),
        }
    }
}

//! Norms of rows, and softmax.

use crate::device::{Device, Values, ValuesMut};
use crate::ops::{Norm, NormBy, RmsNorm};

impl Device {
    /// RMS norm of each row of `x` (`[n, d]`, `d = weight.len()`): `out = x / sqrt(mean(x²) + eps) * weight`. Heads are
    /// rows too: pass `[n * n_head, head_dim]`.
    pub fn rms_norm(
        &self,
        x: &(impl Values + ?Sized),
        weight: &(impl Values + ?Sized),
        eps: f32,
        out: &mut (impl ValuesMut + ?Sized),
    ) {
        let (x, weight) = (x.view(), weight.view());
        self.run(RmsNorm { x, weight, eps, out: out.view_mut() });
    }

    /// [`Device::rms_norm`] with the result in place of `x`.
    pub fn rms_norm_inplace(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        weight: &(impl Values + ?Sized),
        eps: f32,
    ) {
        let weight = weight.view();
        self.run(Norm { x: x.view_mut(), d: weight.len(), eps, by: NormBy::Rms(weight) });
    }

    /// [`Device::rms_norm_inplace`] with a weight of its own for each group: `x` is `[n, n_groups, d]`, `weights` is
    /// `[n_groups, d]`.
    pub fn group_rms_norm(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        weights: &(impl Values + ?Sized),
        d: usize,
        eps: f32,
    ) {
        self.run(Norm { x: x.view_mut(), d, eps, by: NormBy::Rms(weights.view()) });
    }

    /// Layer norm by group, in place: `x` is `[n, n_groups, d]`, `weights` and `biases` are `[n_groups, d]`. Each row of `d`
    /// becomes `(x - mean) / sqrt(variance + eps) * weight + bias`.
    pub fn group_layer_norm(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        weights: &(impl Values + ?Sized),
        biases: &(impl Values + ?Sized),
        d: usize,
        eps: f32,
    ) {
        let by = NormBy::Layer(weights.view(), biases.view());
        self.run(Norm { x: x.view_mut(), d, eps, by });
    }

    /// L2 norm of each row of `x` (`[n, d]`; heads are rows too), in place: `x / sqrt(sum(x²) + eps)`.
    pub fn l2_norm(&self, x: &mut (impl ValuesMut + ?Sized), d: usize, eps: f32) {
        self.run(Norm { x: x.view_mut(), d, eps, by: NormBy::L2 });
    }

    /// Softmax of each row of `x` (`[n, d]`), in place.
    pub fn softmax(&self, x: &mut (impl ValuesMut + ?Sized), d: usize) {
        self.run(Norm { x: x.view_mut(), d, eps: 0.0, by: NormBy::Softmax });
    }
}

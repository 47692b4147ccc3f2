//! Norms of rows, and softmax.

use super::{Device, Values, ValuesMut};

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
        match self.gpu_of(out) {
            Some((gpu, out)) => gpu.rms_norm(x.on_gpu(gpu), weight.on_gpu(gpu), eps, out),
            None => self.compute.rms_norm(x.on_host(), weight.on_host(), eps, out.on_host_mut()),
        }
    }

    /// [`Device::rms_norm`] with the result in place of `x`.
    pub fn rms_norm_inplace(
        &self,
        x: &mut (impl ValuesMut + ?Sized),
        weight: &(impl Values + ?Sized),
        eps: f32,
    ) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.rms_norm_inplace(x, weight.on_gpu(gpu), eps),
            None => self.compute.rms_norm_inplace(x.on_host_mut(), weight.on_host(), eps),
        }
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
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.group_rms_norm(x, weights.on_gpu(gpu), d, eps),
            None => self.compute.group_rms_norm(x.on_host_mut(), weights.on_host(), d, eps),
        }
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
        match self.gpu_of(x) {
            Some((gpu, x)) => {
                gpu.group_layer_norm(x, weights.on_gpu(gpu), biases.on_gpu(gpu), d, eps)
            }
            None => self.compute.group_layer_norm(
                x.on_host_mut(),
                weights.on_host(),
                biases.on_host(),
                d,
                eps,
            ),
        }
    }

    /// L2 norm of each row of `x` (`[n, d]`; heads are rows too), in place: `x / sqrt(sum(x²) + eps)`.
    pub fn l2_norm(&self, x: &mut (impl ValuesMut + ?Sized), d: usize, eps: f32) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.l2_norm(x, d, eps),
            None => self.compute.l2_norm(x.on_host_mut(), d, eps),
        }
    }

    /// Softmax of each row of `x` (`[n, d]`), in place.
    pub fn softmax(&self, x: &mut (impl ValuesMut + ?Sized), d: usize) {
        match self.gpu_of(x) {
            Some((gpu, x)) => gpu.softmax(x, d),
            None => self.compute.softmax(x.on_host_mut(), d),
        }
    }
}

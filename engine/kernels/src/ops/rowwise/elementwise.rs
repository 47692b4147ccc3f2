//! Elementwise and row-wise ops: what a block calls between its products.
//!
//! Each op checks its shapes (a mismatch is a bug of the caller and panics), spreads its rows over the pool,
//! and leaves the arithmetic to the table.

use std::ops::Range;

use crate::compute::Compute;
use crate::tiles::out_rows::Rows;

impl Compute {
    /// RMS norm of each row of `x` (`[n, d]`, `d = weight.len()`):
    /// `out = x / sqrt(mean(x²) + eps) * weight`. Heads are rows too: pass `[n * n_head, head_dim]`.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "rms_norm: lengths of x and out");
        out.copy_from_slice(x);
        self.rms_norm_inplace(out, weight, eps);
    }

    /// [`Compute::rms_norm`] with the result in place of `x`.
    pub fn rms_norm_inplace(&self, x: &mut [f32], weight: &[f32], eps: f32) {
        let norm = self.kernels().rms_norm;
        self.each_row(x, weight.len(), "rms_norm", &|_, row| norm(row, weight, eps));
    }

    /// [`Compute::rms_norm_inplace`] with a weight of its own for each group: `x` is
    /// `[n, n_groups, d]`, `weights` is `[n_groups, d]`, and each row of `d` is normed by itself.
    pub fn group_rms_norm(&self, x: &mut [f32], weights: &[f32], d: usize, eps: f32) {
        let norm = self.kernels().rms_norm;
        let groups = weights.len() / d;
        assert!(groups > 0 && weights.len() == groups * d, "group_rms_norm: rows of the weights");
        assert!(x.len().is_multiple_of(weights.len()), "group_rms_norm: whole rows of groups");
        self.each_row(x, d, "group_rms_norm", &|r, row| {
            norm(row, &weights[r % groups * d..][..d], eps);
        });
    }

    /// Layer norm by group, in place. `x` is `[n, n_groups, d]`; `weights` and `biases` are `[n_groups, d]`.
    /// Each row of `d` becomes `x = (x - mean) / sqrt(variance + eps) * weight + bias`.
    pub fn group_layer_norm(
        &self,
        x: &mut [f32],
        weights: &[f32],
        biases: &[f32],
        d: usize,
        eps: f32,
    ) {
        let norm = self.kernels().layer_norm;
        let groups = weights.len() / d;
        assert!(groups > 0 && weights.len() == groups * d, "group_layer_norm: rows of the weights");
        assert_eq!(weights.len(), biases.len(), "group_layer_norm: weights and biases");
        assert!(x.len().is_multiple_of(weights.len()), "group_layer_norm: whole rows of groups");
        self.each_row(x, d, "group_layer_norm", &|r, row| {
            let of = |v: &[f32]| -> std::ops::Range<usize> {
                let start = r % (v.len() / d) * d;
                start..start + d
            };
            norm(row, &weights[of(weights)], &biases[of(biases)], eps);
        });
    }

    /// Moves each row of `x` (`[n, d]`) towards that of `to` by the `share` (`[d]`) of each column:
    /// `x += (to - x) * share`.
    pub fn lerp(&self, x: &mut [f32], to: &[f32], share: &[f32]) {
        assert_eq!(x.len(), to.len(), "lerp: lengths of x and to");
        let (lerp, d) = (self.kernels().lerp, share.len());
        self.each_row(x, d, "lerp", &|r, row| lerp(row, &to[r * d..][..d], share));
    }

    /// L2 norm of each row of `x` (`[n, d]`; heads are rows too), in place:
    /// `x = x / sqrt(sum(x²) + eps)`.
    pub fn l2_norm(&self, x: &mut [f32], d: usize, eps: f32) {
        let norm = self.kernels().l2_norm;
        self.each_row(x, d, "l2_norm", &|_, row| norm(row, eps));
    }

    /// `out += x`.
    pub fn add(&self, out: &mut [f32], x: &[f32]) {
        let add = self.kernels().add;
        self.each_span(out, x.len(), "add", &|span, out| add(out, &x[span]));
    }

    /// `out += x * s`.
    pub fn add_scaled(&self, out: &mut [f32], x: &[f32], s: f32) {
        let add_scaled = self.kernels().add_scaled;
        self.each_span(out, x.len(), "add_scaled", &|span, out| add_scaled(out, &x[span], s));
    }

    /// `x *= s`.
    pub fn scale(&self, x: &mut [f32], s: f32) {
        let scale = self.kernels().scale;
        let len = x.len();
        self.each_span(x, len, "scale", &|_, x| scale(x, s));
    }

    /// Multiplies row `r` of `x` (`[n, d]`) by `factors[r]`.
    pub fn scale_rows(&self, x: &mut [f32], d: usize, factors: &[f32]) {
        assert_eq!(x.len(), factors.len() * d, "scale_rows: a factor for each row");
        let scale = self.kernels().scale;
        self.each_row(x, d, "scale_rows", &|r, row| scale(row, factors[r]));
    }

    /// `x *= y`.
    pub fn mul(&self, x: &mut [f32], y: &[f32]) {
        let mul = self.kernels().mul;
        self.each_span(x, y.len(), "mul", &|span, x| mul(x, &y[span]));
    }

    /// Adds `bias` (`[d]`) to each row of `x` (`[n, d]`).
    pub fn add_bias(&self, x: &mut [f32], bias: &[f32]) {
        let add = self.kernels().add;
        self.each_row(x, bias.len(), "add_bias", &|_, row| add(row, bias));
    }

    /// `out = silu(gate) * up`, where `silu(g) = g / (1 + exp(-g))`.
    pub fn silu_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert_eq!(up.len(), out.len(), "silu_mul: lengths of up and out");
        out.copy_from_slice(up);
        self.silu_mul_inplace(out, gate);
    }

    /// `x *= silu(gate)`.
    pub fn silu_mul_inplace(&self, x: &mut [f32], gate: &[f32]) {
        let silu_mul = self.kernels().silu_mul;
        self.each_span(x, gate.len(), "silu_mul", &|span, x| silu_mul(x, &gate[span]));
    }

    /// `x *= sigmoid(gate)`, where `sigmoid(g) = 1 / (1 + exp(-g))`.
    pub fn sigmoid_mul(&self, x: &mut [f32], gate: &[f32]) {
        let sigmoid_mul = self.kernels().sigmoid_mul;
        self.each_span(x, gate.len(), "sigmoid_mul", &|span, x| sigmoid_mul(x, &gate[span]));
    }

    /// `x = silu(x)`.
    pub fn silu(&self, x: &mut [f32]) {
        self.map(x, "silu", self.kernels().silu);
    }

    /// `x = sigmoid(x)`.
    pub fn sigmoid(&self, x: &mut [f32]) {
        self.map(x, "sigmoid", self.kernels().sigmoid);
    }

    /// `x = tanh(x)`.
    pub fn tanh(&self, x: &mut [f32]) {
        self.map(x, "tanh", self.kernels().tanh);
    }

    /// `x = tanh(x)`, with the bits of the crate libm's `tanhf`.
    pub fn plain_tanh(&self, x: &mut [f32]) {
        self.map(x, "plain_tanh", |x| x.iter_mut().for_each(|x| *x = libm::tanhf(*x)));
    }

    /// `x = sqrt(x)`.
    pub fn sqrt(&self, x: &mut [f32]) {
        self.map(x, "sqrt", |x| x.iter_mut().for_each(|x| *x = x.sqrt()));
    }

    /// `x = max(x, 0)`.
    pub fn relu(&self, x: &mut [f32]) {
        self.map(x, "relu", |x| x.iter_mut().for_each(|x| *x = x.max(0.0)));
    }

    /// Multiplies each row of `x` (`[n, d]`) by `factors` (`[d]`).
    pub fn scale_columns(&self, x: &mut [f32], factors: &[f32]) {
        self.each_row(x, factors.len(), "scale_columns", &|_, row| {
            row.iter_mut().zip(factors).for_each(|(x, factor)| *x *= factor);
        });
    }

    /// `x = ln(1 + exp(x))`.
    pub fn softplus(&self, x: &mut [f32]) {
        self.map(x, "softplus", self.kernels().softplus);
    }

    /// `x = max(x, 0)²`.
    pub fn relu_squared(&self, x: &mut [f32]) {
        self.map(x, "relu_squared", self.kernels().relu_squared);
    }

    /// Softmax of each row of `x` (`[n, d]`), in place.
    pub fn softmax(&self, x: &mut [f32], d: usize) {
        let softmax = self.kernels().softmax;
        self.each_row(x, d, "softmax", &|_, row| softmax(row));
    }

    /// Fills `out` (`[n, d]`) row by row on the threads of this pool: `task(row index, row)`.
    pub fn fill_rows(&self, out: &mut [f32], d: usize, task: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        self.each_row(out, d, "fill_rows", task);
    }

    /// Runs `task(row index, row)` on every row of `x` (`[n, d]`).
    pub(crate) fn each_row(
        &self,
        x: &mut [f32],
        d: usize,
        op: &str,
        task: &(dyn Fn(usize, &mut [f32]) + Sync),
    ) {
        assert!(d > 0 && x.len().is_multiple_of(d), "{op}: {} values in rows of {d}", x.len());
        let n_rows = x.len() / d;
        let rows = Rows::new(x, d);
        self.for_rows(n_rows, d, &|range| {
            for r in range {
                // SAFETY: `for_rows` hands out each row once.
                task(r, unsafe { rows.rows(r..r + 1) });
            }
        });
    }

    /// Runs `op` on parts of `x`.
    pub(super) fn map(&self, x: &mut [f32], name: &str, op: fn(&mut [f32])) {
        let len = x.len();
        self.each_span(x, len, name, &|_, x| op(x));
    }

    /// Runs `task(range, part)` on consecutive parts of `x`, cut at multiples of the lane count.
    pub(super) fn each_span(
        &self,
        x: &mut [f32],
        other_len: usize,
        op: &str,
        task: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
    ) {
        /// Elements of a part: a multiple of the lanes, so that cuts do not change tails.
        const SPAN: usize = 4096;
        let len = x.len();
        assert_eq!(len, other_len, "{op}: lengths of the operands");
        let values = Rows::new(x, 1);
        self.for_rows(len.div_ceil(SPAN), SPAN, &|spans| {
            let range = spans.start * SPAN..(spans.end * SPAN).min(len);
            // SAFETY: `for_rows` hands out each span once, and spans are disjoint.
            task(range.clone(), unsafe { values.rows(range) });
        });
    }
}

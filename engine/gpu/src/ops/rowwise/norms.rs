//! Norms and softmax: ops of which each row is one.

use bytemuck::Zeroable;

use super::elementwise::count;
use super::joining::{self, RowsKind as Kind, RowsPush as Push};
use crate::commands::dispatch::Work;
use crate::device::{Gpu, lines};
use crate::memory::span::{Span, SpanMut};

/// Operands beside the rows.
#[derive(Clone, Copy, Default)]
struct Norm<'a> {
    weights: Option<Span<'a>>,
    biases: Option<Span<'a>>,
    eps: f32,
}

impl Gpu {
    /// RMS norm of each row of `x` (`[n, d]`, `d` values in `weight`): `out = x / sqrt(mean(x²) + eps) * weight`. Heads are rows too:
    /// pass `[n * n_head, head_dim]`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn rms_norm(&self, x: Span<'_>, weight: Span<'_>, eps: f32, out: SpanMut<'_>) {
        assert_eq!(x.len(), out.len(), "rms_norm: lengths of x and out");
        let norm = Norm { weights: Some(weight), biases: None, eps };
        self.rows(Kind::Rms, x.address(), out, weight.values(), norm);
    }

    /// [`Gpu::rms_norm`] with the result in place of `x`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn rms_norm_inplace(&self, x: SpanMut<'_>, weight: Span<'_>, eps: f32) {
        self.group_rms_norm(x, weight, weight.values(), eps);
    }

    /// [`Gpu::rms_norm_inplace`] with a weight of its own for each group: `x` is `[n, n_groups, d]`, `weights` is
    /// `[n_groups, d]`, and each row of `d` is normed by itself.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn group_rms_norm(&self, x: SpanMut<'_>, weights: Span<'_>, d: usize, eps: f32) {
        let norm = Norm { weights: Some(weights), biases: None, eps };
        self.rows(Kind::Rms, x.as_span().address(), x, d, norm);
    }

    /// Layer norm by group, in place. `x` is `[n, n_groups, d]`; `weights` and `biases` are `[n_groups, d]`. Each row of `d` becomes
    /// `x = (x - mean) / sqrt(variance + eps) * weight + bias`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn group_layer_norm(
        &self,
        x: SpanMut<'_>,
        weights: Span<'_>,
        biases: Span<'_>,
        d: usize,
        eps: f32,
    ) {
        assert_eq!(weights.len(), biases.len(), "group_layer_norm: weights and biases");
        let norm = Norm { weights: Some(weights), biases: Some(biases), eps };
        self.rows(Kind::Layer, x.as_span().address(), x, d, norm);
    }

    /// L2 norm of each row of `x` (`[n, d]`; heads are rows too), in place: `x = x / sqrt(sum(x²) + eps)`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn l2_norm(&self, x: SpanMut<'_>, d: usize, eps: f32) {
        self.rows(Kind::L2, x.as_span().address(), x, d, Norm { eps, ..Norm::default() });
    }

    /// Softmax of each row of `x` (`[n, d]`), in place.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn softmax(&self, x: SpanMut<'_>, d: usize) {
        self.rows(Kind::Softmax, x.as_span().address(), x, d, Norm::default());
    }

    /// Rows of `d` at the address `x`, as many values as `out` has, to `out`.
    fn rows(&self, kind: Kind, x: u64, out: SpanMut<'_>, d: usize, norm: Norm<'_>) {
        let len = out.values();
        assert!(d > 0 && len.is_multiple_of(d), "{len} values in rows of {d}");
        let n = len / d;
        let groups = norm.weights.map_or(1, |w| w.values() / d);
        let whole = norm.weights.is_none_or(|w| w.values() == groups * d);
        assert!(groups > 0 && whole && n.is_multiple_of(groups), "{n} rows in groups of {groups}");
        let address = |span: Option<Span<'_>>| span.map_or(0, |span| span.address());
        let push = Push {
            x,
            weights: address(norm.weights),
            biases: address(norm.biases),
            result: out.address(),
            n: count(n),
            d: count(d),
            groups: groups as u32,
            eps: norm.eps,
            ..Push::zeroed()
        };
        let threads = push.threads();
        let groups = lines(n.div_ceil(256 / threads as usize));
        let constants = [kind as u32, threads, 0, 0, push.held_fours(kind as u32)];
        let work = Work::new(&joining::ROWS, &constants, &push, groups);
        // SAFETY: the kernel reads the `n` rows of `x` and the rows of weights and biases, which are whole groups of
        // `d` (checked); it writes the `n` rows of `out`. Fusion to a sum it does that one's work too.
        unsafe { self.dispatch_joined(&work, |last| joining::norm_of_sum(last, &work)) };
    }
}

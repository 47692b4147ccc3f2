//! Several streams that are updated by turns (AltUp, arXiv 2301.13310, section 3, as Gemma 3n has it). Only the first of them
//! goes through a layer's attention and FFN.
//!
//! A router makes a few numbers of a row: `m = tanh(router (norm(x) / width))`.
//!
//! - Before the layer ([`Predict`]), with `P = predict_coef m`: stream `j` becomes `x_j + sum_k P[j][k] x_k`.
//! - Behind it ([`Correct`]), with `c = correct_coef m` and the difference `d` between the first stream and its prediction:
//!   stream `j` becomes `prediction_j + (1 + c_j) d`.

use super::{Block, BlockCx};
use crate::arch::AltUpSpec;
use crate::device::Rows;
use crate::error::ModelError;
use crate::kernels::{PackedMatrix, Vector};
use crate::state::BlockState;
use crate::weights::WeightLoader;

/// Makes a row's few numbers, and of these the weights of streams.
struct Router {
    /// `[n_embd]`.
    norm: Vector,
    eps: f32,
    /// `[n, n_embd]`.
    router: PackedMatrix,
    /// `[n_coefs, n]`.
    coefs: Vector,
}

impl Router {
    /// Loads `<stem>.altup_router_norm`, `altup_router` and `<stem>.<coefs>`, of `n_coefs` rows.
    fn load(
        spec: &AltUpSpec,
        (stem, coefs): (&str, &str),
        n_coefs: usize,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        Ok(Self {
            norm: loader.vector(&format!("{stem}.altup_router_norm.weight"), n_embd)?,
            eps: spec.eps,
            router: loader.matrix(&format!("{stem}.altup_router.weight"), spec.n, n_embd)?,
            coefs: loader.values(&format!("{stem}.{coefs}.weight"), &[spec.n, n_coefs])?,
        })
    }

    /// `[n_rows, n_coefs]` of rows `x` `[n_rows, n_embd]`.
    fn weights(&self, cx: &BlockCx<'_>, x: &Rows) -> Rows {
        let (n, n_embd) = (self.router.rows(), self.router.cols());
        let n_rows = x.n_rows();
        let mut normed = cx.scratch.take(n_rows, n_embd);
        cx.device.rms_norm(x, &self.norm, self.eps, &mut normed);
        cx.device.scale(&mut normed, 1.0 / n_embd as f32);
        let mut numbers = cx.scratch.take(n_rows, n);
        cx.device.multiply(&self.router, &normed, &mut numbers);
        numbers.iter_mut().for_each(|number| *number = libm::tanhf(*number));
        let mut weights = cx.scratch.take(n_rows, self.coefs.len() / n);
        let rows = weights.chunks_exact_mut(self.coefs.len() / n);
        for (weights, numbers) in rows.zip(numbers.chunks_exact(n)) {
            for (weight, coefs) in weights.iter_mut().zip(self.coefs.chunks_exact(n)) {
                *weight = coefs.iter().zip(numbers).map(|(c, number)| c * number).sum();
            }
        }
        weights
    }
}

/// The streams as the layer is to find them.
pub struct Predict {
    spec: AltUpSpec,
    router: Router,
}

impl Predict {
    /// Loads `<stem>.altup_{router_norm,router,predict_coef}`.
    pub fn load(
        spec: &AltUpSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let coefs = (stem, "altup_predict_coef");
        Ok(Self {
            spec: *spec,
            router: Router::load(spec, coefs, spec.n * spec.n, n_embd, loader)?,
        })
    }
}

impl Block for Predict {
    fn nbytes(&self) -> usize {
        self.router.router.nbytes()
    }

    /// Of what the first stream `x` gains. The streams beside it become their predictions, and the first one's is kept there
    /// until the layer's end.
    fn forward(&self, cx: &mut BlockCx<'_>, _: &mut BlockState, x: &Rows) -> Rows {
        let (n_embd, n) = (x.cols(), self.spec.n);
        let weights = self.router.weights(cx, x);
        let take = || cx.scratch.take(x.n_rows(), n_embd);
        let (mut out, mut gains) = (take(), Vec::from_iter(self.spec.others().map(|_| take())));
        let others = &cx.beside[self.spec.others()];
        let streams: Vec<&Rows> = std::iter::once(x).chain(others).collect();
        let all = std::iter::once(&mut out).chain(&mut gains);
        for (j, gain) in all.enumerate() {
            cx.device.fill_rows(gain, n_embd, &|row, gain| {
                let weights = &weights[(row * n + j) * n..][..n];
                gain.fill(0.0);
                for (stream, weight) in streams.iter().zip(weights) {
                    gain.iter_mut().zip(stream.row(row)).for_each(|(g, x)| *g += weight * x);
                }
            });
        }
        for (stream, gain) in cx.beside[self.spec.others()].iter_mut().zip(&gains) {
            cx.device.add(stream, gain);
        }
        let at = self.spec.prediction();
        if cx.beside.len() <= at {
            cx.beside.resize_with(at + 1, Rows::default);
        }
        let prediction = &mut cx.beside[at];
        prediction.set(x);
        cx.device.add(prediction, &out);
        out
    }
}

/// The streams as the layer leaves them.
pub struct Correct {
    spec: AltUpSpec,
    router: Router,
}

impl Correct {
    /// Loads `<stem>.altup_{router_norm,router,correct_coef}`.
    pub fn load(
        spec: &AltUpSpec,
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        let coefs = (stem, "altup_correct_coef");
        Ok(Self { spec: *spec, router: Router::load(spec, coefs, spec.n, n_embd, loader)? })
    }
}

impl Block for Correct {
    fn nbytes(&self) -> usize {
        self.router.router.nbytes()
    }

    /// Of what the first stream `x` gains: as it is its prediction plus the difference, that is `c_0` of the difference. The
    /// streams beside it are corrected where they are.
    fn forward(&self, cx: &mut BlockCx<'_>, _: &mut BlockState, x: &Rows) -> Rows {
        let (n_embd, n) = (x.cols(), self.spec.n);
        let weights = self.router.weights(cx, x);
        let mut difference = cx.scratch.take(x.n_rows(), n_embd);
        let prediction = &cx.beside[self.spec.prediction()];
        cx.device.fill_rows(&mut difference, n_embd, &|row, difference| {
            let both = x.row(row).iter().zip(prediction.row(row));
            difference.iter_mut().zip(both).for_each(|(d, (x, p))| *d = x - p);
        });
        let others = cx.beside[self.spec.others()].iter_mut().enumerate();
        for (i, stream) in others {
            cx.device.fill_rows(stream, n_embd, &|row, stream| {
                let weight = 1.0 + weights[row * n + i + 1];
                stream.iter_mut().zip(difference.row(row)).for_each(|(s, d)| *s += weight * d);
            });
        }
        let mut out = cx.scratch.take(x.n_rows(), n_embd);
        cx.device.fill_rows(&mut out, n_embd, &|row, out| {
            out.iter_mut().zip(difference.row(row)).for_each(|(o, d)| *o = weights[row * n] * d);
        });
        out
    }
}

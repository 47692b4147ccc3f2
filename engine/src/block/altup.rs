//! Several streams that are updated by turns (AltUp, arXiv 2301.13310, section 3, as Gemma 3n has it). Only the first of them
//! goes through a layer's attention and FFN.
//!
//! A router makes a few numbers of a row: `m = tanh(router (norm(x) / width))`.
//!
//! - Before the layer ([`Predict`]), with `P = predict_coef m`: stream `j` becomes `x_j + sum_k P[j][k] x_k`.
//! - Behind it ([`Correct`]), with `c = correct_coef m` and the difference `d` between the first stream and its prediction:
//!   stream `j` becomes `prediction_j + (1 + c_j) d`.

use super::{Block, BlockCx};
use crate::device::{Rows, Values, Weighed};
use crate::kernels::{PackedMatrix, SumStart, Vector, WeightsAt};
use crate::spec::{AltUpSpec, ModelError};
use crate::state::BlockState;
use crate::weights::WeightLoader;

/// Makes a row's few numbers, and of these the weights of streams.
struct Router {
    /// `[n_embd]`.
    norm: Vector,
    eps: f32,
    /// `[n, n_embd]`.
    router: PackedMatrix,
    /// What each number counts for each coefficient, `[n, n_coefs]`.
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
        let n = spec.n;
        let norm = loader.vector(&format!("{stem}.altup_router_norm.weight"), n_embd)?;
        let router = loader.matrix(&format!("{stem}.altup_router.weight"), n, n_embd)?;
        let by_coef = loader.values(&format!("{stem}.{coefs}.weight"), &[n, n_coefs])?;
        let coefs = (0..n * n_coefs).map(|i| by_coef[i % n_coefs * n + i / n_coefs]).collect();
        Ok(Self { norm, eps: spec.eps, router, coefs })
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
        cx.device.plain_tanh(&mut numbers);
        let n_coefs = self.coefs.len() / n;
        let mut weights = cx.scratch.take(n_rows, n_coefs);
        let sources: Vec<_> = (0..n).map(|i| (&self.coefs as &dyn Values, i * n_coefs)).collect();
        let at = WeightsAt { first: 0, stride: n, step: 1, by_column: false };
        let of = Weighed { sources: &sources, stride: 0, weights: &numbers, at };
        cx.device.weigh(&mut weights, SumStart::Zero, &of);
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
        let streams = std::iter::once(x).chain(others);
        let sources: Vec<_> = streams.map(|stream| (stream as &dyn Values, 0)).collect();
        let all = std::iter::once(&mut out).chain(&mut gains);
        for (j, gain) in all.enumerate() {
            let at = WeightsAt { first: j * n, stride: n * n, step: 1, by_column: false };
            let of = Weighed { sources: &sources, stride: n_embd, weights: &weights, at };
            cx.device.weigh(gain, SumStart::Zero, &of);
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
    /// Added to the weights: 1 to those of all streams but the first.
    ones: Vector,
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
        let router = Router::load(spec, coefs, spec.n, n_embd, loader)?;
        // Zero with a sign is what changes no weight, not even zero.
        let ones = (0..spec.n).map(|i| if i == 0 { -0.0 } else { 1.0 }).collect();
        Ok(Self { spec: *spec, router, ones })
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
        let mut weights = self.router.weights(cx, x);
        cx.device.add_bias(&mut weights, &self.ones);
        let mut difference = cx.scratch.copy_of(x);
        cx.device.add_scaled(&mut difference, &cx.beside[self.spec.prediction()], -1.0);
        for (i, stream) in cx.beside[self.spec.others()].iter_mut().enumerate() {
            let at = WeightsAt { first: i + 1, stride: n, step: 1, by_column: false };
            let sources: [(&dyn Values, usize); 1] = [(&difference, 0)];
            let of = Weighed { sources: &sources, stride: n_embd, weights: &weights, at };
            cx.device.weigh(stream, SumStart::Own, &of);
        }
        let own = cx.device.columns_of(cx.scratch, &weights, 0, 1);
        cx.device.scale_rows(&mut difference, n_embd, &own);
        difference
    }
}

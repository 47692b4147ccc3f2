//! Several streams that are updated by turns (AltUp, arXiv 2301.13310, section 3, as Gemma 3n has it). Only the first of them
//! goes through a layer's attention and FFN.
//!
//! A router makes a few numbers of a row: `m = tanh(router (norm(x) / width))`.
//!
//! - Before the layer ([`Predict`]), with `P = predict_coef m`: stream `j` becomes `x_j + sum_k P[j][k] x_k`.
//! - Behind it ([`Correct`]), with `c = correct_coef m` and the difference `d` between the first stream and its prediction:
//!   stream `j` becomes `prediction_j + (1 + c_j) d`.
//!
//! Matrices make the other streams of the embedded row, and one row of all of them for the head ([`StreamMatrices`]).

use super::norm::{self, Norm};
use super::{Begin, BoundaryRows, Inputs, Merge, Met, On, Residual};
use crate::batch::UBatch;
use crate::device::{Rows, Values, Weighed};
use crate::kernels::{PackedMatrix, SumStart, Vector, WeightsAt};
use crate::spec::{ALTUP_PROJ, AltUpSpec, AltUpStep, ModelError};
use crate::weights::WeightLoader;

/// Name of the matrices that make one row for the head of several streams.
const ALTUP_UNEMBD: &str = "altup_unembd_proj.weight";

/// Loads what a block has to do with the streams; names of its tensors follow `stem`.
///
/// # Errors
/// As of every tensor that is missing, misshapen or of an unknown type.
pub(super) fn load(
    loader: &mut WeightLoader<'_>,
    spec: AltUpSpec,
    step: AltUpStep,
    stem: &str,
    n_embd: usize,
) -> Result<Box<dyn Residual>, ModelError> {
    Ok(match step {
        AltUpStep::Predict => {
            let coefs = Coefs { name: "altup_predict_coef", n: spec.n * spec.n };
            Box::new(Predict { spec, router: Router::load(loader, spec, stem, coefs, n_embd)? })
        }
        AltUpStep::Correct => {
            let coefs = Coefs { name: "altup_correct_coef", n: spec.n };
            let router = Router::load(loader, spec, stem, coefs, n_embd)?;
            // Zero with a sign is what changes no weight, not even zero.
            let ones = (0..spec.n).map(|i| if i == 0 { -0.0 } else { 1.0 }).collect();
            Box::new(Correct { spec, router, ones })
        }
        AltUpStep::Others => {
            let scale = loader.vector(&format!("{stem}altup_correct_scale.weight"), n_embd)?;
            Box::new(Others { spec, scale })
        }
    })
}

/// Tensor of what each number counts for each coefficient, and how many coefficients there are.
struct Coefs {
    name: &'static str,
    n: usize,
}

/// Makes a row's few numbers, and of these the weights of streams.
struct Router {
    /// `[n_embd]`.
    norm: Vector,
    eps: f32,
    /// `[n, n_embd]`.
    router: PackedMatrix,
    /// Weight of each number in each coefficient, `[n, n_coefs]`.
    coefs: Vector,
}

impl Router {
    /// Loads `altup_router_norm`, `altup_router` and those coefficients.
    fn load(
        loader: &mut WeightLoader<'_>,
        spec: AltUpSpec,
        stem: &str,
        coefs: Coefs,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        let (n, n_coefs) = (spec.n, coefs.n);
        let norm = loader.vector(&format!("{stem}altup_router_norm.weight"), n_embd)?;
        let router = loader.matrix(&format!("{stem}altup_router.weight"), n, n_embd)?;
        let by_coef = loader.values(&format!("{stem}{}.weight", coefs.name), &[n, n_coefs])?;
        let coefs = (0..n * n_coefs).map(|i| by_coef[i % n_coefs * n + i / n_coefs]).collect();
        Ok(Self { norm, eps: spec.eps, router, coefs })
    }

    /// `[n_rows, n_coefs]` of rows `x` `[n_rows, n_embd]`.
    fn weights(&self, On { device, scratch }: On<'_>, x: &Rows) -> Rows {
        let (n, n_embd) = (self.router.rows(), self.router.cols());
        let n_rows = x.n_rows();
        let mut normed = scratch.take(n_rows, n_embd);
        device.rms_norm(x, &self.norm, self.eps, &mut normed);
        device.scale(&mut normed, 1.0 / n_embd as f32);
        let mut numbers = scratch.take(n_rows, n);
        device.multiply(&self.router, &normed, &mut numbers);
        device.plain_tanh(&mut numbers);
        let n_coefs = self.coefs.len() / n;
        let mut weights = scratch.take(n_rows, n_coefs);
        let sources: Vec<_> = (0..n).map(|i| (&self.coefs as &dyn Values, i * n_coefs)).collect();
        let at = WeightsAt { first: 0, stride: n, step: 1, by_column: false };
        let of = Weighed { sources: &sources, stride: 0, weights: &numbers, at };
        device.weigh(&mut weights, SumStart::Zero, &of);
        weights
    }
}

/// Predicts the streams before the block reads the first one.
struct Predict {
    spec: AltUpSpec,
    router: Router,
}

impl Residual for Predict {
    fn nbytes(&self) -> usize {
        self.router.router.nbytes()
    }

    /// The prediction of the first stream is kept beside the others until the layer's end.
    fn enter(
        &self,
        on: On<'_>,
        norm: Option<&Norm>,
        rows: &mut BoundaryRows,
        inputs: &mut Inputs,
    ) -> Option<Rows> {
        let On { device, scratch } = on;
        let BoundaryRows { hidden, beside } = rows;
        let (n_embd, n) = (hidden.cols(), self.spec.n);
        let weights = self.router.weights(on, hidden);
        let take = || scratch.take(hidden.n_rows(), n_embd);
        let (mut own, mut gains) = (take(), Vec::from_iter(self.spec.others().map(|_| take())));
        let others = &beside[self.spec.others()];
        let streams = std::iter::once(&*hidden).chain(others);
        let sources: Vec<_> = streams.map(|stream| (stream as &dyn Values, 0)).collect();
        let all = std::iter::once(&mut own).chain(&mut gains);
        for (j, gain) in all.enumerate() {
            let at = WeightsAt { first: j * n, stride: n * n, step: 1, by_column: false };
            let of = Weighed { sources: &sources, stride: n_embd, weights: &weights, at };
            device.weigh(gain, SumStart::Zero, &of);
        }
        for (stream, gain) in beside[self.spec.others()].iter_mut().zip(&gains) {
            device.add(stream, gain);
        }
        let at = self.spec.prediction();
        if beside.len() <= at {
            beside.resize_with(at + 1, Rows::default);
        }
        device.add_scaled(hidden, &own, 1.0);
        beside[at].set(hidden);
        norm::read(device, norm, hidden, &mut inputs.rows);
        None
    }

    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        on.device.add_scaled(&mut rows.hidden, &met.output, 1.0);
    }
}

/// Corrects the streams when the block's output was added to the first one.
struct Correct {
    spec: AltUpSpec,
    router: Router,
    /// Added to the weights: 1 to those of all streams but the first.
    ones: Vector,
}

impl Residual for Correct {
    fn nbytes(&self) -> usize {
        self.router.router.nbytes()
    }

    /// The first stream is already its prediction plus the difference: it gains `c_0` of the difference.
    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        let On { device, scratch } = on;
        let BoundaryRows { hidden, beside } = rows;
        device.add_scaled(hidden, &met.output, 1.0);
        let (n_embd, n) = (hidden.cols(), self.spec.n);
        let mut weights = self.router.weights(on, hidden);
        device.add_bias(&mut weights, &self.ones);
        let mut difference = scratch.copy_of(hidden);
        device.add_scaled(&mut difference, &beside[self.spec.prediction()], -1.0);
        for (i, stream) in beside[self.spec.others()].iter_mut().enumerate() {
            let at = WeightsAt { first: i + 1, stride: n, step: 1, by_column: false };
            let sources: [(&dyn Values, usize); 1] = [(&difference, 0)];
            let of = Weighed { sources: &sources, stride: n_embd, weights: &weights, at };
            device.weigh(stream, SumStart::Own, &of);
        }
        let own = device.columns_of(scratch, &weights, 0, 1);
        device.scale_rows(&mut difference, n_embd, &own);
        device.add_scaled(hidden, &difference, 1.0);
    }
}

/// The block reads the first stream, each value times a factor, and its output is added to the others.
struct Others {
    spec: AltUpSpec,
    /// `[n_embd]`.
    scale: Vector,
}

impl Residual for Others {
    fn enter(
        &self,
        on: On<'_>,
        norm: Option<&Norm>,
        rows: &mut BoundaryRows,
        inputs: &mut Inputs,
    ) -> Option<Rows> {
        norm::read(on.device, norm, &rows.hidden, &mut inputs.rows);
        on.device.scale_columns(&mut inputs.rows, &self.scale);
        None
    }

    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        for stream in &mut rows.beside[self.spec.others()] {
            on.device.add(stream, &met.output);
        }
    }
}

/// A matrix `[n_embd, n_embd]` for each stream but the first.
pub(super) struct StreamMatrices {
    matrices: Vec<PackedMatrix>,
    spec: AltUpSpec,
}

impl StreamMatrices {
    /// Loads those with which the other streams begin.
    ///
    /// # Errors
    /// As of every tensor that is missing, misshapen or of an unknown type.
    pub(super) fn of_tokens(
        loader: &mut WeightLoader<'_>,
        spec: &AltUpSpec,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        Self::load(loader, spec, ALTUP_PROJ, n_embd)
    }

    /// Loads those that make one row of the other streams for the head.
    ///
    /// # Errors
    /// As of [`Self::of_tokens`].
    pub(super) fn of_head(
        loader: &mut WeightLoader<'_>,
        spec: &AltUpSpec,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        Self::load(loader, spec, ALTUP_UNEMBD, n_embd)
    }

    fn load(
        loader: &mut WeightLoader<'_>,
        spec: &AltUpSpec,
        name: &str,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        Ok(Self { matrices: loader.experts(name, spec.n - 1, n_embd, n_embd)?, spec: *spec })
    }
}

impl Begin for StreamMatrices {
    /// The other streams are made of the first one, each of the same magnitude row by row.
    fn begin(&self, on: On<'_>, _: &UBatch, rows: &mut BoundaryRows) {
        let BoundaryRows { hidden, beside } = rows;
        beside.extend(self.matrices.iter().map(|matrix| projected(on, matrix, hidden, hidden)));
    }
}

impl Merge for StreamMatrices {
    /// `out = (hidden + what the matrices make of the other streams) / number of streams`; these get the magnitude that the
    /// first one has row by row.
    fn merge(&self, on: On<'_>, rows: &BoundaryRows, out: &mut Rows) {
        out.set(&rows.hidden);
        for (matrix, stream) in self.matrices.iter().zip(&rows.beside[self.spec.others()]) {
            on.device.add(out, &projected(on, matrix, stream, &rows.hidden));
        }
        on.device.scale(out, 1.0 / self.spec.n as f32);
    }
}

/// `matrix` times each row of `x`, with the magnitude that the row of `like` has.
fn projected(on: On<'_>, matrix: &PackedMatrix, x: &Rows, like: &Rows) -> Rows {
    let mut out = on.scratch.take(x.n_rows(), matrix.rows());
    on.device.multiply(matrix, x, &mut out);
    on.device.match_magnitudes(&mut out, like);
    out
}

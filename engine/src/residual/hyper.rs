//! Several streams that every block reads and writes (hyper-connections, see [`HyperSpec`] for the formulas): what weighs
//! them is made of the streams themselves, row by row, in the order of their numbers.

use super::alike::Spread;
use super::norm::{self, Norm};
use super::{BoundaryRows, Inputs, Merge, Met, On, Residual};
use crate::device::{Rows, Values, Weighed};
use crate::kernels::{PackedMatrix, StreamShape, SumStart, Vector, WeightsAt};
use crate::spec::{HyperSpec, ModelError};
use crate::weights::WeightLoader;

/// Weights of the connection of one block, or of the head, with the streams.
pub(super) struct HyperConnection {
    spec: HyperSpec,
    /// `[n_weights, n * n_embd]`.
    matrix: PackedMatrix,
    /// `[n_weights]`.
    base: Vector,
    /// One for what is read, for a block also one for what is written, and one for the mixture.
    scale: Vector,
    /// Weights of a norm that weighs all alike.
    ones: Vector,
}

/// Sizes of a connection's tensors.
struct Shape {
    n_weights: usize,
    n_scales: usize,
    n_embd: usize,
}

impl HyperConnection {
    /// Loads `_{fn,base,scale}` of a block, whose names follow `stem` and the connection's own stem.
    ///
    /// # Errors
    /// As of every tensor that is missing, misshapen or of an unknown type.
    pub(super) fn of_block(
        loader: &mut WeightLoader<'_>,
        spec: &HyperSpec,
        stem: &str,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        let n_scales = if spec.rounds.is_some() { 3 } else { 2 };
        let shape = Shape { n_weights: spec.n_weights(), n_scales, n_embd };
        Self::load(loader, spec, stem, shape)
    }

    /// Loads those of the head, which only reads.
    ///
    /// # Errors
    /// As of [`Self::of_block`].
    pub(super) fn of_head(
        loader: &mut WeightLoader<'_>,
        spec: &HyperSpec,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        Self::load(loader, spec, "", Shape { n_weights: spec.n, n_scales: 1, n_embd })
    }

    fn load(
        loader: &mut WeightLoader<'_>,
        spec: &HyperSpec,
        stem: &str,
        Shape { n_weights, n_scales, n_embd }: Shape,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}{}_{part}.weight", spec.stem);
        let width = spec.n * n_embd;
        Ok(Self {
            matrix: loader.matrix(&name("fn"), n_weights, width)?,
            base: loader.vector(&name("base"), n_weights)?,
            scale: loader.vector(&name("scale"), n_scales)?,
            ones: vec![1.0; width].into(),
            spec: *spec,
        })
    }

    /// `out[n_rows, n_embd]`: the sum of the streams that a block reads. Gives what weighs them.
    fn read(&self, on: On<'_>, rows: &BoundaryRows, out: &mut Rows) -> Rows {
        let On { device, scratch } = on;
        let n = self.spec.n;
        let streams: Vec<&Rows> = rows.streams(n).collect();
        let mut all = scratch.take(rows.hidden.n_rows(), self.ones.len());
        device.side_by_side(&streams, &mut all);
        device.rms_norm_inplace(&mut all, &self.ones, self.spec.norm_eps);
        let mut weights = scratch.take(all.n_rows(), self.matrix.rows());
        device.multiply(&self.matrix, &all, &mut weights);
        let HyperSpec { eps, magnitude, post_eps, rounds, .. } = self.spec;
        let shape = StreamShape { n, eps, magnitude, post_eps, rounds };
        device.stream_weights(&shape, &self.base, &self.scale, &mut weights);
        let sources: Vec<(&dyn Values, usize)> =
            streams.into_iter().map(|stream| (stream as &dyn Values, 0)).collect();
        let at = WeightsAt { first: 0, stride: weights.cols(), step: 1, by_column: false };
        let read = Weighed { sources: &sources, stride: out.cols(), weights: &weights, at };
        device.weigh(out, SumStart::Zero, &read);
        weights
    }
}

impl Residual for HyperConnection {
    fn nbytes(&self) -> usize {
        self.matrix.nbytes()
    }

    /// Keeps what weighs the streams.
    fn enter(
        &self,
        on: On<'_>,
        norm: Option<&Norm>,
        rows: &mut BoundaryRows,
        inputs: &mut Inputs,
    ) -> Option<Rows> {
        let weights = self.read(on, rows, &mut inputs.rows);
        norm::apply(on.device, norm, &mut inputs.rows);
        Some(weights)
    }

    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        let HyperSpec { n, rounds, .. } = self.spec;
        let weights = met.kept.as_ref().expect("kept when the block read the streams");
        let spread = Spread { n, weights, first: n, mixes: rounds.is_some() };
        spread.add(on, &met.output, rows);
    }
}

impl Merge for HyperConnection {
    fn merge(&self, on: On<'_>, rows: &BoundaryRows, out: &mut Rows) {
        self.read(on, rows, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Device, Scratch};
    use crate::kernels::select;
    use crate::quant::GgmlType;

    /// Three streams of two values, written out.
    #[test]
    fn a_block_reads_and_writes_all_streams() {
        let device = Device::cpu(select(Some("reference")).unwrap(), 1, None).unwrap();
        let spec = HyperSpec {
            n: 3,
            norm_eps: 0.0,
            eps: 0.25,
            magnitude: 2.0,
            post_eps: 0.5,
            rounds: None,
            stem: "a",
        };
        // Each of the six weights is made of one of the six values.
        let mut matrix = vec![0.0f32; 6 * 6];
        (0..6).for_each(|i| matrix[i * 6 + i] = 1.0);
        let bytes = bytemuck::cast_slice(&matrix);
        let connection = HyperConnection {
            spec,
            matrix: PackedMatrix::pack(device.host(), GgmlType::F32, 6, 6, bytes).unwrap(),
            base: vec![0.1; 6].into(),
            scale: vec![0.5, 2.0].into(),
            ones: vec![1.0; 6].into(),
        };
        let flat = [1.0f32, 2.0, -1.0, 0.5, 3.0, -2.0];
        let mut streams = flat.chunks_exact(2).map(|stream| Rows::new(stream.to_vec(), 2));
        let mut rows = BoundaryRows::stream(streams.next().unwrap());
        rows.beside = streams.collect();
        let scratch = Scratch::default();
        let on = On { device: &device, scratch: &scratch };
        let mut read = Rows::new(vec![0.0; 2], 2);
        let weights = connection.read(on, &rows, &mut read);
        let rms = (flat.iter().map(|x| x * x).sum::<f32>() / 6.0).sqrt();
        let bent = |i: usize, scale: f32| 1.0 / (1.0 + (-(scale * flat[i] / rms + 0.1)).exp());
        let want =
            |at: usize| (0..3).map(|i| (bent(i, 0.5) + 0.25) * flat[2 * i + at]).sum::<f32>();
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a} {b}");
        (0..2).for_each(|at| near(read[at], want(at)));
        let y = Rows::new(vec![10.0, -20.0], 2);
        let met = Met { output: scratch.copy_of(&y), input: &read, kept: Some(weights) };
        connection.meet(on, met, &mut rows);
        for (i, stream) in rows.streams(3).enumerate() {
            let post = 2.0 * bent(3 + i, 2.0) + 0.5;
            (0..2).for_each(|at| near(stream[at], flat[2 * i + at] + post * y[at]));
        }
        let weights = [[0.0; 3], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]].concat();
        let weights = Rows::new(weights, 12);
        let mixed = Spread { n: 3, weights: &weights, first: 0, mixes: true };
        let sum: Vec<f32> = (0..2).map(|at| rows.streams(3).map(|s| s[at]).sum()).collect();
        mixed.add(on, &y, &mut rows);
        let streams: Vec<&Rows> = rows.streams(3).collect();
        assert_eq!((&streams[0][..], &streams[2][..]), (&[0.0; 2][..], &[0.0; 2][..]));
        (0..2).for_each(|at| near(streams[1][at], sum[at]));
    }
}

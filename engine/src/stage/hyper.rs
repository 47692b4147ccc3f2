//! Several streams that every block reads and writes (hyper-connections, see [`HyperSpec`] for the formulas): what weighs
//! them is made of the streams themselves, row by row, in the order of their numbers.

use super::boundary_rows::BoundaryRows;
use crate::device::{Device, Rows, Scratch, Values, Weighed};
use crate::kernels::{PackedMatrix, StreamShape, SumStart, Vector, WeightsAt};
use crate::spec::{HyperSpec, ModelError};
use crate::weights::WeightLoader;

/// What joins one block, or the head, to the streams.
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

/// How the output of a block goes to the streams.
pub(super) struct Spread {
    n: usize,
    /// `[n_rows, width]`: from column `first` on what each stream gets of the output, and where streams mix behind that
    /// `[n, n]` from stream to stream.
    weights: Rows,
    first: usize,
    mixes: bool,
}

impl HyperConnection {
    /// Loads `<stem>_{fn,base,scale}` of a block.
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
        Self::load(loader, spec, stem, [spec.n_weights(), n_scales, n_embd])
    }

    /// Loads those of the head, which only reads.
    ///
    /// # Errors
    /// As of [`Self::of_block`].
    pub(super) fn of_head(
        loader: &mut WeightLoader<'_>,
        spec: &HyperSpec,
        stem: &str,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        Self::load(loader, spec, stem, [spec.n, 1, n_embd])
    }

    fn load(
        loader: &mut WeightLoader<'_>,
        spec: &HyperSpec,
        stem: &str,
        [n_weights, n_scales, n_embd]: [usize; 3],
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}_{part}.weight");
        let width = spec.n * n_embd;
        Ok(Self {
            matrix: loader.matrix(&name("fn"), n_weights, width)?,
            base: loader.vector(&name("base"), n_weights)?,
            scale: loader.vector(&name("scale"), n_scales)?,
            ones: vec![1.0; width].into(),
            spec: *spec,
        })
    }

    /// `out[n_rows, n_embd]`: the sum of the streams that a block reads. Returns how its output goes to them.
    pub(super) fn read(
        &self,
        (device, scratch): (&Device, &Scratch),
        rows: &BoundaryRows,
        out: &mut Rows,
    ) -> Spread {
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
        let mixes = rounds.is_some() && weights.cols() > n;
        Spread { n, weights, first: n, mixes }
    }

    /// Bytes of the matrix.
    pub(super) fn nbytes(&self) -> usize {
        self.matrix.nbytes()
    }
}

impl Spread {
    /// With weights `post` `[n_rows, n]` to streams that do not mix.
    pub(super) fn unmixed(n: usize, post: Rows) -> Self {
        Self { n, weights: post, first: 0, mixes: false }
    }

    /// Adds a block's output `y` `[n_rows, n_embd]` to the streams, which mix where they do.
    pub(super) fn add(
        &self,
        (device, scratch): (&Device, &Scratch),
        y: &Rows,
        rows: &mut BoundaryRows,
    ) {
        let n = self.n;
        let old: Vec<Rows> = if self.mixes {
            rows.streams(n).map(|stream| scratch.copy_of(stream)).collect()
        } else {
            Vec::new()
        };
        let start = if self.mixes { SumStart::Zero } else { SumStart::Own };
        let sources = std::iter::once(y).chain(&old);
        let sources: Vec<_> = sources.map(|rows| (rows as &dyn Values, 0)).collect();
        for (to, stream) in rows.streams_mut(n).enumerate() {
            // What a stream gets of the output stands in the row before what it gets of the first stream.
            let (first, stride) = (self.first + to, self.weights.cols());
            let at = WeightsAt { first, stride, step: n, by_column: false };
            let of = Weighed { sources: &sources, stride: y.cols(), weights: &self.weights, at };
            device.weigh(stream, start, &of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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
            stems: ["a", "b"],
            head_stem: None,
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
        let tools = (&device, &scratch);
        let mut read = Rows::new(vec![0.0; 2], 2);
        let spread = connection.read(tools, &rows, &mut read);
        let rms = (flat.iter().map(|x| x * x).sum::<f32>() / 6.0).sqrt();
        let bent = |i: usize, scale: f32| 1.0 / (1.0 + (-(scale * flat[i] / rms + 0.1)).exp());
        let want =
            |at: usize| (0..3).map(|i| (bent(i, 0.5) + 0.25) * flat[2 * i + at]).sum::<f32>();
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a} {b}");
        (0..2).for_each(|at| near(read[at], want(at)));
        let y = Rows::new(vec![10.0, -20.0], 2);
        spread.add(tools, &y, &mut rows);
        for (i, stream) in rows.streams(3).enumerate() {
            let post = 2.0 * bent(3 + i, 2.0) + 0.5;
            (0..2).for_each(|at| near(stream[at], flat[2 * i + at] + post * y[at]));
        }
        let weights = [[0.0; 3], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]].concat();
        let mixed = Spread { n: 3, weights: Rows::new(weights, 12), first: 0, mixes: true };
        let sum: Vec<f32> = (0..2).map(|at| rows.streams(3).map(|s| s[at]).sum()).collect();
        mixed.add(tools, &y, &mut rows);
        let streams: Vec<&Rows> = rows.streams(3).collect();
        assert_eq!((&streams[0][..], &streams[2][..]), (&[0.0; 2][..], &[0.0; 2][..]));
        (0..2).for_each(|at| near(streams[1][at], sum[at]));
    }
}

//! Several streams that every block reads and writes (hyper-connections, see [`HyperSpec`] for the formulas): what weighs
//! them is made of the streams themselves, row by row, in the order of their numbers.

use super::boundary_rows::BoundaryRows;
use crate::arch::HyperSpec;
use crate::device::Device;
use crate::error::ModelError;
use crate::kernels::{PackedMatrix, Vector};
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
    /// `[n_rows, n]`.
    post: Vec<f32>,
    /// `[n_rows, n, n]`, from stream to stream; empty where streams do not mix.
    mix: Vec<f32>,
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
    pub(super) fn read(&self, device: &Device, rows: &BoundaryRows, out: &mut [f32]) -> Spread {
        let n = self.spec.n;
        let weights = self.weights(device, rows);
        let (n_weights, eps) = (self.base.len(), self.spec.eps);
        let of_row = |row: usize| &weights[row * n_weights..][..n_weights];
        let pre =
            |row: usize, i: usize| sigmoid(self.scale[0] * of_row(row)[i] + self.base[i]) + eps;
        let streams: Vec<&[f32]> = rows.streams(n).map(|stream| &stream[..]).collect();
        let n_embd = self.ones.len() / n;
        device.fill_rows(out, n_embd, &|row, out| {
            out.fill(0.0);
            for (i, stream) in streams.iter().enumerate() {
                add_times(out, &stream[row * n_embd..][..n_embd], pre(row, i));
            }
        });
        let n_rows = weights.len() / n_weights;
        let mut spread = Spread { n, post: Vec::new(), mix: Vec::new() };
        if n_weights == n {
            return spread;
        }
        for row in (0..n_rows).map(of_row) {
            let (post, mix) = row[n..].split_at(n);
            let weigh = |(m, b): (&f32, &f32)| {
                sigmoid(self.scale[1] * m + b) * self.spec.magnitude + self.spec.post_eps
            };
            spread.post.extend(post.iter().zip(&self.base[n..]).map(weigh));
            if let Some(rounds) = self.spec.rounds {
                let shifted = mix.iter().zip(&self.base[2 * n..]);
                let start = spread.mix.len();
                spread.mix.extend(shifted.map(|(m, b)| self.scale[2] * m + b));
                doubly_stochastic(&mut spread.mix[start..], n, rounds, eps);
            }
        }
        spread
    }

    /// `m` of all rows, `[n_rows, n_weights]`.
    fn weights(&self, device: &Device, rows: &BoundaryRows) -> Vec<f32> {
        let n = self.spec.n;
        let streams: Vec<&[f32]> = rows.streams(n).map(|stream| &stream[..]).collect();
        let mut all = side_by_side(device, &streams, self.ones.len() / n);
        let n_rows = all.len() / self.ones.len();
        device.rms_norm_inplace(&mut all, &self.ones, self.spec.norm_eps);
        let mut weights = vec![0.0; n_rows * self.matrix.rows()];
        device.multiply(&self.matrix, &all, &mut weights);
        weights
    }

    /// Bytes of the matrix.
    pub(super) fn nbytes(&self) -> usize {
        self.matrix.nbytes()
    }
}

/// All streams, `[n_rows, n_embd]` each, as one row: `[n_rows, n * n_embd]`.
pub(super) fn side_by_side(device: &Device, streams: &[&[f32]], n_embd: usize) -> Vec<f32> {
    let mut all = vec![0.0; streams.iter().map(|stream| stream.len()).sum()];
    device.fill_rows(&mut all, streams.len() * n_embd, &|row, all| {
        for (part, stream) in all.chunks_exact_mut(n_embd).zip(streams) {
            part.copy_from_slice(&stream[row * n_embd..][..n_embd]);
        }
    });
    all
}

impl Spread {
    /// With weights `post` `[n_rows, n]` to streams that do not mix.
    pub(super) fn unmixed(n: usize, post: Vec<f32>) -> Self {
        Self { n, post, mix: Vec::new() }
    }

    /// Adds a block's output `y` `[n_rows, n_embd]` to the streams, which mix where they do.
    pub(super) fn add(&self, device: &Device, y: &[f32], rows: &mut BoundaryRows) {
        let n = self.n;
        let n_embd = y.len() / (self.post.len() / n);
        let old: Vec<Vec<f32>> = match self.mix.is_empty() {
            true => Vec::new(),
            false => rows.streams(n).map(|stream| stream.to_vec()).collect(),
        };
        for (to, stream) in rows.streams_mut(n).enumerate() {
            device.fill_rows(stream, n_embd, &|row, stream| {
                let at = row * n_embd..(row + 1) * n_embd;
                if !old.is_empty() {
                    stream.fill(0.0);
                }
                add_times(stream, &y[at.clone()], self.post[row * n + to]);
                for (from, old) in old.iter().enumerate() {
                    add_times(stream, &old[at.clone()], self.mix[(row * n + from) * n + to]);
                }
            });
        }
    }
}

fn add_times(out: &mut [f32], x: &[f32], factor: f32) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out += x * factor);
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + libm::expf(-x))
}

/// Makes of `[n, n]` numbers a matrix whose rows and columns all sum to one, nearly: a softmax of each row, then the
/// columns are divided by their sums, and `rounds - 1` times the rows and then the columns. (Sinkhorn and Knopp; arXiv
/// 2512.24880, section 4.2.)
fn doubly_stochastic(matrix: &mut [f32], n: usize, rounds: usize, eps: f32) {
    for row in matrix.chunks_exact_mut(n) {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        row.iter_mut().for_each(|x| *x = libm::expf(*x - most));
        let sum: f32 = row.iter().sum();
        row.iter_mut().for_each(|x| *x = *x / sum + eps);
    }
    for round in 0..rounds.max(1) {
        if round > 0 {
            for row in matrix.chunks_exact_mut(n) {
                let sum = row.iter().sum::<f32>() + eps;
                row.iter_mut().for_each(|x| *x /= sum);
            }
        }
        for column in 0..n {
            let sum = matrix[column..].iter().step_by(n).sum::<f32>() + eps;
            matrix[column..].iter_mut().step_by(n).for_each(|x| *x /= sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Rows;
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
            matrix: PackedMatrix::pack(&device, GgmlType::F32, 6, 6, bytes).unwrap(),
            base: vec![0.1; 6].into(),
            scale: vec![0.5, 2.0].into(),
            ones: vec![1.0; 6].into(),
        };
        let flat = [1.0f32, 2.0, -1.0, 0.5, 3.0, -2.0];
        let mut streams = flat.chunks_exact(2).map(|stream| Rows::new(stream.to_vec(), 2));
        let mut rows = BoundaryRows::stream(streams.next().unwrap());
        rows.beside = streams.collect();
        let mut read = vec![0.0; 2];
        let spread = connection.read(&device, &rows, &mut read);
        let rms = (flat.iter().map(|x| x * x).sum::<f32>() / 6.0).sqrt();
        let bent = |i: usize, scale: f32| 1.0 / (1.0 + (-(scale * flat[i] / rms + 0.1)).exp());
        let want =
            |at: usize| (0..3).map(|i| (bent(i, 0.5) + 0.25) * flat[2 * i + at]).sum::<f32>();
        let near = |a: f32, b: f32| assert!((a - b).abs() < 1e-5, "{a} {b}");
        (0..2).for_each(|at| near(read[at], want(at)));
        let y = [10.0, -20.0];
        spread.add(&device, &y, &mut rows);
        for (i, stream) in rows.streams(3).enumerate() {
            let post = 2.0 * bent(3 + i, 2.0) + 0.5;
            (0..2).for_each(|at| near(stream[at], flat[2 * i + at] + post * y[at]));
        }
        let mixed = Spread { n: 3, post: vec![0.0; 3], mix: [[0.0, 1.0, 0.0]; 3].concat() };
        let sum: Vec<f32> = (0..2).map(|at| rows.streams(3).map(|s| s[at]).sum()).collect();
        mixed.add(&device, &y, &mut rows);
        let streams: Vec<&Rows> = rows.streams(3).collect();
        assert_eq!((&streams[0][..], &streams[2][..]), (&[0.0; 2][..], &[0.0; 2][..]));
        (0..2).for_each(|at| near(streams[1][at], sum[at]));
    }

    #[test]
    fn rows_and_columns_sum_to_one() {
        let mut matrix: Vec<f32> = (0..16).map(|i| ((i * 7 % 11) as f32 - 5.0) / 3.0).collect();
        doubly_stochastic(&mut matrix, 4, 20, 1e-6);
        for i in 0..4 {
            let row: f32 = matrix[i * 4..][..4].iter().sum();
            let column: f32 = matrix[i..].iter().step_by(4).sum();
            assert!((row - 1.0).abs() < 1e-4 && (column - 1.0).abs() < 1e-4, "{row} {column}");
        }
        assert!(matrix.iter().all(|x| *x > 0.0));
        // One round leaves the columns at one.
        let mut once: Vec<f32> = (0..9).map(|i| (i * i % 7) as f32 / 4.0).collect();
        doubly_stochastic(&mut once, 3, 1, 0.0);
        let column: f32 = once.iter().step_by(3).sum();
        assert!((column - 1.0).abs() < 1e-6);
        let row: f32 = once[..3].iter().sum();
        assert!((row - 1.0).abs() > 1e-3, "rows come second: {row}");
    }
}

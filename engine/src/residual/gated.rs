//! Several streams that every block reads and writes through gates of single values: see [`GatedSpec`] for the formulas.

use super::alike::Spread;
use super::norm::{self, Norm};
use super::{BoundaryRows, Inputs, Merge, Met, On, Residual};
use crate::device::{Rows, Values, Weighed};
use crate::kernels::{PackedMatrix, SumStart, Vector, WeightsAt};
use crate::spec::{GatedSpec, ModelError};
use crate::weights::WeightLoader;

/// Weights of the connection of one block, or of the head, with the streams.
pub(super) struct GatedConnection {
    spec: GatedSpec,
    /// `[n * n_embd]`, the weights of one stream after those of the other.
    norm: Vector,
    /// `[rank, n * n_embd]`.
    down: PackedMatrix,
    /// `[n * n_embd, rank]`.
    up: PackedMatrix,
    /// `[n, n * n_embd]`; `None` of the head, which only reads.
    inject: Option<PackedMatrix>,
}

impl GatedConnection {
    /// Loads `_{norm,down,up,inject}` of a block, whose names follow `stem` and the connection's own stem.
    ///
    /// # Errors
    /// As of every tensor that is missing, misshapen or of an unknown type.
    pub(super) fn of_block(
        loader: &mut WeightLoader<'_>,
        spec: &GatedSpec,
        stem: &str,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        let connection = Self::load(loader, spec, stem, n_embd)?;
        let inject = format!("{stem}{}_inject.weight", spec.stem);
        let inject = Some(loader.matrix(&inject, spec.n, spec.n * n_embd)?);
        Ok(Self { inject, ..connection })
    }

    /// Loads those of the head, which only reads.
    ///
    /// # Errors
    /// As of [`Self::of_block`].
    pub(super) fn of_head(
        loader: &mut WeightLoader<'_>,
        spec: &GatedSpec,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        Self::load(loader, spec, "", n_embd)
    }

    fn load(
        loader: &mut WeightLoader<'_>,
        spec: &GatedSpec,
        stem: &str,
        n_embd: usize,
    ) -> Result<Self, ModelError> {
        let name = |part: &str| format!("{stem}{}_{part}.weight", spec.stem);
        let width = spec.n * n_embd;
        Ok(Self {
            norm: loader.values_of_either(&name("norm"), &[width], &[n_embd, spec.n])?,
            down: loader.matrix(&name("down"), spec.rank, width)?,
            up: loader.matrix(&name("up"), width, spec.rank)?,
            inject: None,
            spec: *spec,
        })
    }

    /// `out[n_rows, n_embd]`: the mean of the gated streams. Gives what weighs a block's output for each of them.
    fn read(&self, on: On<'_>, rows: &BoundaryRows, out: &mut Rows) -> Option<Rows> {
        let On { device, scratch } = on;
        let (n, width, n_rows) = (self.spec.n, self.norm.len(), rows.hidden.n_rows());
        let (n_embd, share) = (width / n, 1.0 / n as f32);
        let mut all = scratch.take(n_rows, width);
        device.side_by_side(&rows.streams(n).collect::<Vec<_>>(), &mut all);
        device.group_rms_norm(&mut all, &self.norm, n_embd, self.spec.eps);
        let mut low = scratch.take(n_rows, self.spec.rank);
        device.multiply(&self.down, &all, &mut low);
        device.scale(&mut low, share);
        device.silu(&mut low);
        let mut gates = scratch.take(n_rows, width);
        device.multiply(&self.up, &low, &mut gates);
        device.sigmoid(&mut gates);
        let sources: Vec<(&dyn Values, usize)> =
            (0..n).map(|i| (&all as &dyn Values, i * n_embd)).collect();
        let at = WeightsAt { first: 0, stride: width, step: n_embd, by_column: true };
        let gated = Weighed { sources: &sources, stride: width, weights: &gates, at };
        device.weigh(out, SumStart::Zero, &gated);
        device.scale(out, share);
        let inject = self.inject.as_ref()?;
        let mut post = scratch.take(n_rows, n);
        device.multiply(inject, &all, &mut post);
        device.scale(&mut post, share);
        device.sigmoid(&mut post);
        device.scale(&mut post, 2.0);
        Some(post)
    }
}

impl Residual for GatedConnection {
    fn nbytes(&self) -> usize {
        let own = [&self.down, &self.up].into_iter().chain(&self.inject);
        own.map(PackedMatrix::nbytes).sum()
    }

    /// Keeps what weighs the block's output.
    fn enter(
        &self,
        on: On<'_>,
        norm: Option<&Norm>,
        rows: &mut BoundaryRows,
        inputs: &mut Inputs,
    ) -> Option<Rows> {
        let weights = self.read(on, rows, &mut inputs.rows);
        norm::apply(on.device, norm, &mut inputs.rows);
        weights
    }

    fn meet(&self, on: On<'_>, met: Met<'_>, rows: &mut BoundaryRows) {
        let weights = met.kept.as_ref().expect("kept when the block read the streams");
        let spread = Spread { n: self.spec.n, weights, first: 0, mixes: false };
        spread.add(on, &met.output, rows);
    }
}

impl Merge for GatedConnection {
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

    /// Three streams of two values, written out in f64.
    #[test]
    fn a_block_reads_and_writes_all_streams_through_gates() {
        const N: usize = 3;
        const WIDTH: usize = 6;
        const RANK: usize = 2;
        let device = Device::cpu(select(Some("reference")).unwrap(), 1, None).unwrap();
        let values = |n: usize, step: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * step + 3) % 11) as f32 / 4.0 - 1.25).collect()
        };
        let pack = |rows: usize, cols: usize, values: &[f32]| {
            let bytes = bytemuck::cast_slice(values);
            PackedMatrix::pack(device.host(), GgmlType::F32, rows, cols, bytes).unwrap()
        };
        let (down, up) = (values(RANK * WIDTH, 5), values(WIDTH * RANK, 7));
        let (inject, norm) = (values(N * WIDTH, 4), values(WIDTH, 3));
        let eps = 1e-3;
        let spec = GatedSpec { n: N, rank: RANK, eps, stem: "a" };
        let connection = GatedConnection {
            spec,
            norm: norm.clone().into(),
            down: pack(RANK, WIDTH, &down),
            up: pack(WIDTH, RANK, &up),
            inject: Some(pack(N, WIDTH, &inject)),
        };
        let flat = [1.0f32, 2.0, -1.0, 0.5, 3.0, -2.0];
        let mut streams = flat.chunks_exact(2).map(|stream| Rows::new(stream.to_vec(), 2));
        let mut rows = BoundaryRows::stream(streams.next().unwrap());
        rows.beside = streams.collect();
        let scratch = Scratch::default();
        let on = On { device: &device, scratch: &scratch };
        let mut read = Rows::new(vec![0.0; 2], 2);
        let kept = connection.read(on, &rows, &mut read);

        let normed: Vec<f64> = (0..WIDTH)
            .map(|i| {
                let stream = &flat[i / 2 * 2..][..2];
                let mean = stream.iter().map(|x| f64::from(x * x)).sum::<f64>() / 2.0;
                f64::from(flat[i] * norm[i]) / (mean + f64::from(eps)).sqrt()
            })
            .collect();
        let times = |w: &[f32], x: &[f64]| -> Vec<f64> {
            let row = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
            w.chunks_exact(x.len()).map(row).collect()
        };
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let low = times(&down, &normed).into_iter().map(|x| x / 3.0);
        let gates = times(&up, &low.map(|x| x * sigmoid(x)).collect::<Vec<f64>>());
        let near = |a: f32, b: f64| assert!((f64::from(a) - b).abs() < 1e-5, "{a} {b}");
        for j in 0..2 {
            let gated = (0..N).map(|i| normed[2 * i + j] * sigmoid(gates[2 * i + j]));
            near(read[j], gated.sum::<f64>() / 3.0);
        }
        let y = Rows::new(vec![10.0, -20.0], 2);
        connection.meet(on, Met { output: scratch.copy_of(&y), input: &read, kept }, &mut rows);
        let weights = times(&inject, &normed);
        for (i, stream) in rows.streams(N).enumerate() {
            let weight = 2.0 * sigmoid(weights[i] / 3.0);
            (0..2).for_each(|j| {
                near(stream[j], f64::from(flat[2 * i + j]) + weight * f64::from(y[j]))
            });
        }
    }

    /// A row reads the same whatever rows are beside it.
    #[test]
    fn rows_beside_a_row_change_no_bit() {
        let device = Device::cpu(select(None).unwrap(), 2, None).unwrap();
        let (n, n_embd, rank) = (4, 40, 6);
        let noise = |n: usize, seed: usize| -> Vec<f32> {
            (0..n).map(|i| ((i * 7919 + seed * 31) % 1009) as f32 / 504.5 - 1.0).collect()
        };
        let pack = |rows: usize, cols: usize, seed: usize| {
            let values = noise(rows * cols, seed);
            let bytes = bytemuck::cast_slice(&values);
            PackedMatrix::pack(device.host(), GgmlType::F32, rows, cols, bytes).unwrap()
        };
        let spec = GatedSpec { n, rank, eps: 1e-5, stem: "a" };
        let connection = GatedConnection {
            spec,
            norm: noise(n * n_embd, 1).into(),
            down: pack(rank, n * n_embd, 2),
            up: pack(n * n_embd, rank, 3),
            inject: Some(pack(n, n * n_embd, 4)),
        };
        let n_rows = 9;
        let streams: Vec<Vec<f32>> = (0..n).map(|i| noise(n_rows * n_embd, 5 + i)).collect();
        let run = |first: usize, n_rows: usize| {
            let part = |x: &Vec<f32>| {
                Rows::new(x[first * n_embd..(first + n_rows) * n_embd].to_vec(), n_embd)
            };
            let mut rows = BoundaryRows::stream(part(&streams[0]));
            rows.beside = streams[1..].iter().map(part).collect();
            let scratch = Scratch::default();
            let mut read = scratch.take(n_rows, n_embd);
            let on = On { device: &device, scratch: &scratch };
            let kept = connection.read(on, &rows, &mut read);
            let output = scratch.copy_of(&read);
            connection.meet(on, Met { output, input: &read, kept }, &mut rows);
            let streams: Vec<f32> = rows.streams(n).flat_map(|stream| stream.to_vec()).collect();
            streams.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        };
        let all = run(0, n_rows);
        for row in 0..n_rows {
            let alone = run(row, 1);
            let of_stream = |i: usize| &all[(i * n_rows + row) * n_embd..][..n_embd];
            assert_eq!((0..n).flat_map(of_stream).copied().collect::<Vec<u32>>(), alone);
        }
    }
}

//! A projection: a matrix with its optional bias, and what adapters add to it. Most are parts of blocks; in few models
//! one is a block.

use super::lora::{self, Lora, RowAdapters};
use super::{Block, BlockCx};
use crate::device::{Device, Rows, RowsMut, Scratch, product};
use crate::kernels::{PackedMatrix, Vector};
use crate::ops::{Anywhere, Product};
use crate::spec::ModelError;
use crate::state::BlockState;
use crate::weights::WeightLoader;

/// Weights of `y = W x + b`, and of `s B (A x)` of adapters.
pub struct Linear {
    /// `[out features, in features]`.
    pub(super) weight: PackedMatrix,
    /// `[out features]`; `None`: no bias.
    pub(super) bias: Option<Vector>,
    adapters: Vec<Lora>,
}

/// A projection of rows.
pub struct Projection<'a> {
    linear: &'a Linear,
    x: &'a Rows,
    out: RowsMut<'a>,
}

impl Projection<'_> {
    /// The product without adapters and bias, which are added later.
    fn product(&mut self) -> Product<'_, Anywhere> {
        let Self { linear, x, out } = self;
        let rows = 0..x.n_rows();
        product(&linear.weight, x, rows.clone(), out.part(rows))
    }
}

/// Computes several projections, whose products run in one fork-join. `adapters` are those of the rows of each `x`.
pub fn project_all(
    device: &Device,
    scratch: &Scratch,
    adapters: &RowAdapters,
    projections: &mut [Projection<'_>],
) {
    device.products(projections.iter_mut().map(Projection::product).collect());
    for Projection { linear, x, out } in projections {
        lora::add(device, scratch, adapters, &linear.adapters, x, out);
        if let Some(bias) = &linear.bias {
            device.add_bias(out, bias);
        }
    }
}

impl Linear {
    /// Loads `<stem>.weight` and, where the file has it, `<stem>.bias`.
    pub(super) fn load(
        loader: &mut WeightLoader<'_>,
        stem: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Self, ModelError> {
        let linear = Self::matrix(loader, &format!("{stem}.weight"), rows, cols)?;
        let linear = linear.with_bias(loader.opt_vector(&format!("{stem}.bias"), rows)?);
        linear.switched(loader, stem)
    }

    /// The same with what adapters of the model's own file add, which has them under `<stem>`.
    pub(super) fn switched(
        mut self,
        loader: &mut WeightLoader<'_>,
        stem: &str,
    ) -> Result<Self, ModelError> {
        self.adapters.extend(Lora::switched(loader, stem, self.rows(), self.cols())?);
        Ok(self)
    }

    /// Loads tensor `name` `[rows, cols]`, without a bias.
    pub fn matrix(
        loader: &mut WeightLoader<'_>,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Self, ModelError> {
        let weight = loader.matrix(name, rows, cols)?;
        Self::of(loader, name, weight)
    }

    /// Makes a projection of the whole of tensor `name`, which is packed already.
    pub(super) fn of(
        loader: &mut WeightLoader<'_>,
        name: &str,
        weight: PackedMatrix,
    ) -> Result<Self, ModelError> {
        // Only adapters have to know which rows a part has.
        let rows: Vec<usize> =
            if loader.has_adapters() { (0..weight.rows()).collect() } else { Vec::new() };
        let [linear] = Self::of_parts(loader, name, 0, 1, [weight], [&rows])?;
        Ok(linear)
    }

    /// A projection that no adapter is for.
    pub fn plain(weight: PackedMatrix) -> Self {
        Self { weight, bias: None, adapters: Vec::new() }
    }

    /// The same with a bias.
    pub(super) fn with_bias(self, bias: Option<Vector>) -> Self {
        Self { bias, ..self }
    }

    /// Projections of some rows each of a tensor `[rows, cols]` ([`WeightLoader::split_matrix`]).
    pub(super) fn split<const N: usize>(
        loader: &mut WeightLoader<'_>,
        name: &str,
        rows: usize,
        cols: usize,
        parts: [Vec<usize>; N],
    ) -> Result<[Self; N], ModelError> {
        let weights = loader.split_matrix(name, rows, cols, parts.clone())?;
        Self::of_parts(loader, name, 0, 1, weights, parts.each_ref().map(|part| &part[..]))
    }

    /// Projections that stand below each other in a tensor ([`WeightLoader::row_blocks`]).
    pub(super) fn row_blocks<const N: usize>(
        loader: &mut WeightLoader<'_>,
        name: &str,
        rows: [usize; N],
        cols: usize,
    ) -> Result<[Self; N], ModelError> {
        let weights = loader.row_blocks(name, rows, cols)?;
        let mut start = 0;
        let parts = rows.map(|rows| {
            start += rows;
            (start - rows..start).collect::<Vec<_>>()
        });
        Self::of_parts(loader, name, 0, 1, weights, parts.each_ref().map(|part| &part[..]))
    }

    /// The experts of a layer: `n` projections `[rows, cols]` of one tensor.
    pub(super) fn experts(
        loader: &mut WeightLoader<'_>,
        name: &str,
        n: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<Self>, ModelError> {
        let weights = loader.experts(name, n, rows, cols)?.into_iter().enumerate();
        let all: Vec<usize> = (0..rows).collect();
        let expert = |(i, weight)| {
            let [expert] = Self::of_parts(loader, name, i, n, [weight], [&all])?;
            Ok(expert)
        };
        weights.map(expert).collect()
    }

    /// As [`Linear::experts`], of a tensor that has two projections below each other for each expert.
    pub(super) fn fused_experts(
        loader: &mut WeightLoader<'_>,
        name: &str,
        n: usize,
        rows: usize,
        cols: usize,
    ) -> Result<[Vec<Self>; 2], ModelError> {
        let [first, second] = loader.fused_experts(name, n, rows, cols)?;
        let [upper, lower] = [(0..rows).collect::<Vec<_>>(), (rows..2 * rows).collect()];
        let (mut firsts, mut seconds) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for (i, weights) in first.into_iter().zip(second).enumerate() {
            let parts = [&upper[..], &lower[..]];
            let [first, second] = Self::of_parts(loader, name, i, n, weights.into(), parts)?;
            firsts.push(first);
            seconds.push(second);
        }
        Ok([firsts, seconds])
    }

    /// Gives the parts of a matrix, its rows `rows` each, what adapters have for them. The matrix is number
    /// `index` of the `n` that tensor `name` has.
    fn of_parts<const N: usize>(
        loader: &mut WeightLoader<'_>,
        name: &str,
        index: usize,
        n: usize,
        weights: [PackedMatrix; N],
        rows: [&[usize]; N],
    ) -> Result<[Self; N], ModelError> {
        let mut linears = weights.map(Self::plain);
        for tensors in loader.adapters(name)? {
            let loras = Lora::pack(loader, &tensors, index, n, &rows)?;
            linears.iter_mut().zip(loras).for_each(|(linear, lora)| linear.adapters.push(lora));
        }
        Ok(linears)
    }

    /// The matrix, and what adapters add, without a bias.
    pub(super) fn into_parts(self) -> (PackedMatrix, Vec<Lora>) {
        (self.weight, self.adapters)
    }

    /// Number of output features.
    pub fn rows(&self) -> usize {
        self.weight.rows()
    }

    /// Number of input features.
    pub(super) fn cols(&self) -> usize {
        self.weight.cols()
    }

    /// Bytes of all matrices.
    pub fn nbytes(&self) -> usize {
        self.weight.nbytes() + self.adapters.iter().map(Lora::nbytes).sum::<usize>()
    }

    /// The projection of all rows of `x`, to be computed with others ([`project_all`]).
    pub fn job<'a>(&'a self, x: &'a Rows, out: &'a mut Rows) -> Projection<'a> {
        Projection { linear: self, x, out: out.to_write() }
    }

    /// The projection `[n_rows, out features]` of rows `x[n_rows, in features]`.
    pub(super) fn forward(&self, cx: &BlockCx<'_>, x: &Rows) -> Rows {
        let [y] = cx.project(x, [self]);
        y
    }
}

/// A projection that is a block by itself.
pub(super) struct LinearBlock(Linear);

impl LinearBlock {
    /// Loads `<stem>.attn_output`.
    pub(super) fn load(
        stem: &str,
        n_embd: usize,
        loader: &mut WeightLoader<'_>,
    ) -> Result<Self, ModelError> {
        Ok(Self(Linear::load(loader, &format!("{stem}.attn_output"), n_embd, n_embd)?))
    }
}

impl Block for LinearBlock {
    fn nbytes(&self) -> usize {
        self.0.nbytes()
    }

    fn forward(&self, cx: &mut BlockCx<'_>, _: &mut BlockState, x: &Rows) -> Rows {
        self.0.forward(cx, x)
    }
}

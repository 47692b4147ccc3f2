//! The loader by which blocks take tensors: by name, with the shape that they must have.
//!
//! [`WeightLoader`] is strict. A tensor of the stage's layers that no block asked for is an error. So a model
//! with parts that brigade does not compute never runs as if it had none.

use std::sync::Arc;

use super::packer::{ExpertsPlace, Packer};
use super::reader::{TensorReader, same_shape};
use super::source::{TensorBytes, TensorSource};
use crate::device::{Device, ExpertMatrices};
use crate::gguf::adapters::{self, Pair};
use crate::gguf::{Gguf, TensorInfo};
use crate::kernels::{PackedMatrix, Vector};
use crate::quant::{self, GgmlType};
use crate::spec::ModelError;

/// Most values of a tensor that is not a matrix, where nothing is read: there need not be a file as large.
const MOST_HOLLOW_VALUES: usize = 1 << 28;

/// Matrices of an adapter's file for one tensor of the model.
pub struct AdapterTensors<'a> {
    /// Number of the adapter.
    pub adapter: u32,
    /// Scale of all changes in the file; 0: the file has none.
    pub alpha: f32,
    /// `{in, rank}`, or as many of them as the tensor has matrices.
    pub a: &'a TensorInfo,
    /// `{rank, out}`, as `a`.
    pub b: &'a TensorInfo,
}

/// Hands out the tensors of one stage, each checked for its shape.
pub struct WeightLoader<'a> {
    reader: TensorReader<'a>,
    packer: Packer<'a>,
    /// Places and rank of adapters inside the file, where projections have such.
    switched: Option<(usize, usize)>,
}

impl<'a> WeightLoader<'a> {
    /// Loads from `source` what `model`'s directory lists.
    pub fn new(
        model: &'a Gguf,
        source: &'a dyn TensorSource,
        device: &'a Device,
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        let (reader, packer) = (TensorReader::new(model, source, progress), Packer::new(device));
        Self { reader, packer, switched: None }
    }

    /// Reads and packs nothing: what is loaded so has the right names and shapes, and no weights. To check a file's
    /// tensors by the very code that loads them.
    pub fn hollow(mut self) -> Self {
        self.reader.is_hollow = true;
        self
    }

    /// Puts routed experts there.
    pub(crate) fn with_experts(mut self, experts: ExpertsPlace) -> Self {
        self.packer.experts = experts;
        self
    }

    /// Sets the layer of the file to which the next tensors belong.
    pub(crate) fn at_layer(&mut self, layer: usize) {
        self.packer.layer = Some(layer);
    }

    /// Has `load` load experts, where those of the layer shall lie.
    pub(crate) fn loading_experts<T>(&mut self, load: impl FnOnce(&mut Self) -> T) -> T {
        self.packer.is_of_experts = true;
        let loaded = load(self);
        self.packer.is_of_experts = false;
        loaded
    }

    /// Whether what is loaded has no weights.
    pub fn is_hollow(&self) -> bool {
        self.reader.is_hollow
    }

    /// Blocks may keep `source`, which is the one that is loaded from, to read rows of a tensor later.
    pub fn sharing(mut self, source: Arc<dyn TensorSource>) -> Self {
        self.reader.shared = Some(source);
        self
    }

    /// Refuses an index of so many heads where the device has no kernel for it.
    ///
    /// # Errors
    /// The device is a GPU, and that is too many for it.
    pub fn check_index(&self, heads: usize) -> Result<(), ModelError> {
        Ok(self.packer.device().check_index(heads)?)
    }

    /// The source, for who keeps it.
    ///
    /// # Errors
    /// The source is not shared.
    pub fn shared(&self) -> Result<Arc<dyn TensorSource>, ModelError> {
        self.reader.shared()
    }

    /// Lets projections have adapters of the file's own, so many places of this rank.
    pub fn with_switched(self, switched: Option<(usize, usize)>) -> Self {
        Self { switched, ..self }
    }

    /// Places and rank of adapters inside the file.
    pub fn switched(&self) -> Option<(usize, usize)> {
        self.switched
    }

    /// A tensor whose slices its user takes ([`Self::slice_of`]).
    pub fn stack(&mut self, name: &str, dims: &[usize]) -> Result<&'a TensorInfo, ModelError> {
        self.reader.checked(name, dims)
    }

    /// Whether the model has the tensor.
    pub fn has(&self, name: &str) -> bool {
        self.reader.model.tensor(name).is_some()
    }

    /// A matrix `[rows, cols]` (GGUF dimensions `{cols, rows}`), packed for the kernels.
    pub fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<PackedMatrix, ModelError> {
        let (ty, bytes) = self.raw(name, &[cols, rows])?;
        let scale = self.scales(name, 1)?[0];
        Ok(self.pack(ty, rows, cols, &bytes)?.scaled(scale))
    }

    /// A tensor's type and bytes, for a block that takes it apart.
    pub fn raw(
        &mut self,
        name: &str,
        dims: &[usize],
    ) -> Result<(GgmlType, TensorBytes<'a>), ModelError> {
        let tensor = self.reader.checked(name, dims)?;
        Ok((tensor.ty, self.reader.bytes_of(tensor)?))
    }

    /// A matrix from bytes that such a block made.
    pub fn pack(
        &self,
        ty: GgmlType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<PackedMatrix, ModelError> {
        if self.is_hollow() {
            return Ok(PackedMatrix::hollow(ty, rows, cols)?);
        }
        self.packer.pack(ty, rows, cols, bytes)
    }

    /// Matrices of some rows each of a tensor `{cols, rows}`, in the order that `parts` list them:
    /// files join projections in more than one way, blocks have them apart.
    pub fn split_matrix<const N: usize>(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
        parts: [Vec<usize>; N],
    ) -> Result<[PackedMatrix; N], ModelError> {
        let tensor = self.reader.checked(name, &[cols, rows])?;
        let bytes = self.reader.bytes_of(tensor)?;
        let row_bytes = bytes.len() / rows;
        let scale = self.scales(name, 1)?[0];
        let mut packed = Vec::with_capacity(N);
        for part in parts {
            let mut picked = Vec::with_capacity(part.len() * row_bytes);
            for row in &part {
                picked.extend_from_slice(&bytes[row * row_bytes..(row + 1) * row_bytes]);
            }
            packed.push(self.pack(tensor.ty, part.len(), cols, &picked)?.scaled(scale));
        }
        Ok(packed.try_into().unwrap_or_else(|_| unreachable!("one matrix a part")))
    }

    /// `n` matrices `[rows, cols]` of one tensor `{cols, rows, n}`: the experts of a layer.
    pub fn experts(
        &mut self,
        name: &str,
        n: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<PackedMatrix>, ModelError> {
        let tensor = self.reader.checked(name, &[cols, rows, n])?;
        let scales = self.scales(name, n)?;
        (0..n)
            .map(|i| {
                let expert = self.reader.slice(tensor, n, i)?;
                Ok(self.pack(tensor.ty, rows, cols, &expert)?.scaled(scales[i]))
            })
            .collect()
    }

    /// Experts of one tensor, where products of all of them find them.
    pub fn together(&self, experts: Vec<Arc<PackedMatrix>>) -> Result<ExpertMatrices, ModelError> {
        Ok(self.packer.device().experts(experts)?)
    }

    /// `n` matrices `[rows, cols]` of one tensor `{cols, rows * n}`, below each other in it.
    pub fn stacked(
        &mut self,
        name: &str,
        n: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<PackedMatrix>, ModelError> {
        let tensor = self.reader.checked(name, &[cols, rows * n])?;
        let scale = self.scales(name, 1)?[0];
        (0..n)
            .map(|i| {
                let matrix = self.reader.slice(tensor, n, i)?;
                Ok(self.pack(tensor.ty, rows, cols, &matrix)?.scaled(scale))
            })
            .collect()
    }

    /// `n` pairs of matrices of one tensor `{cols, rows + rows, n}`, whose first `rows` rows are the
    /// first of each pair: two lists of matrices `[rows, cols]`.
    pub fn fused_experts(
        &mut self,
        name: &str,
        n: usize,
        rows: usize,
        cols: usize,
    ) -> Result<[Vec<PackedMatrix>; 2], ModelError> {
        let tensor = self.reader.checked(name, &[cols, 2 * rows, n])?;
        let scales = self.scales(name, n)?;
        let (mut first, mut second) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for i in 0..2 * n {
            let half = self.reader.slice(tensor, 2 * n, i)?;
            let to = if i % 2 == 0 { &mut first } else { &mut second };
            to.push(self.pack(tensor.ty, rows, cols, &half)?.scaled(scales[i / 2]));
        }
        Ok([first, second])
    }

    /// Slice `i` of `n` equal ones of a tensor of adapters.
    pub fn slice_of(
        &mut self,
        tensor: &'a TensorInfo,
        n: usize,
        i: usize,
    ) -> Result<(GgmlType, TensorBytes<'a>), ModelError> {
        self.reader.taken.insert(tensor.name.clone());
        Ok((tensor.ty, self.reader.slice(tensor, n, i)?))
    }

    /// Factors on the products of tensor `name`, which has `n` matrices. NVFP4 has scales in eight bits only, and
    /// BitNet's ternary weights have none, so tensors `X.weight` may have an f32 scale for each matrix in `X.scale`.
    /// NVFP4's `X.input_scale` would be for activations of four bits: ours have eight, and scales of their own.
    fn scales(&mut self, name: &str, n: usize) -> Result<Vec<f32>, ModelError> {
        let is_nvfp4 =
            self.reader.model.tensor(name).is_some_and(|tensor| tensor.ty == GgmlType::NVFP4);
        let Some(stem) = name.strip_suffix(".weight") else { return Ok(vec![1.0; n]) };
        let of_inputs = format!("{stem}.input_scale");
        if is_nvfp4 && self.has(&of_inputs) {
            self.reader.taken.insert(of_inputs);
        }
        let scales = self.opt_vector(&format!("{stem}.scale"), n)?;
        Ok(scales.map_or_else(|| vec![1.0; n], Vector::into_vec))
    }

    /// Whether the model has adapters.
    pub fn has_adapters(&self) -> bool {
        !self.reader.model.adapters().is_empty()
    }

    /// Matrices of each adapter for tensor `name`. Adapters without such are left out.
    pub fn adapters(&self, name: &str) -> Result<Vec<AdapterTensors<'a>>, ModelError> {
        let mut found = Vec::new();
        for (adapter, file) in self.reader.model.adapters().iter().enumerate() {
            let Some(Pair { a, b }) = adapters::pair(self.reader.model, name, adapter) else {
                continue;
            };
            let alpha = file.meta.opt_f32(adapters::ALPHA)?.unwrap_or(0.0);
            found.push(AdapterTensors { adapter: adapter as u32, alpha, a, b });
        }
        Ok(found)
    }

    /// A vector of `n` values as a matrix of one row, in f32: for products with it.
    pub fn row(&mut self, name: &str, n: usize) -> Result<PackedMatrix, ModelError> {
        let values = self.vector(name, n)?;
        self.pack(GgmlType::F32, 1, n, bytemuck::cast_slice(&values))
    }

    /// `N` matrices of one tensor `{cols, sum of rows}`, below each other in it.
    pub fn row_blocks<const N: usize>(
        &mut self,
        name: &str,
        rows: [usize; N],
        cols: usize,
    ) -> Result<[PackedMatrix; N], ModelError> {
        let all: usize = rows.iter().sum();
        let tensor = self.reader.checked(name, &[cols, all])?;
        let bytes = self.reader.bytes_of(tensor)?;
        let row_bytes = bytes.len() / all;
        let scale = self.scales(name, 1)?[0];
        let mut left = &bytes[..];
        let mut blocks = Vec::with_capacity(N);
        for rows in rows {
            let (mine, rest) = left.split_at(rows * row_bytes);
            left = rest;
            blocks.push(self.pack(tensor.ty, rows, cols, mine)?.scaled(scale));
        }
        Ok(blocks.try_into().unwrap_or_else(|_| unreachable!("one block for each of rows")))
    }

    /// A vector of `n` values, in f32 whatever the file's type.
    pub fn vector(&mut self, name: &str, n: usize) -> Result<Vector, ModelError> {
        self.values(name, &[n])
    }

    /// All values of a tensor with dimensions `dims`, as the file orders them, in f32.
    pub fn values(&mut self, name: &str, dims: &[usize]) -> Result<Vector, ModelError> {
        let (ty, bytes) = self.raw(name, dims)?;
        let format = quant::require_format(ty, name)?;
        let n = dims.iter().product();
        if self.is_hollow() && n > MOST_HOLLOW_VALUES {
            let why = format!("tensor {name} has {n} values, the limit is {MOST_HOLLOW_VALUES}");
            return Err(ModelError::Bad(why));
        }
        let mut values = vec![0.0; n];
        if !self.is_hollow() {
            format.dequantize_row(&bytes, &mut values)?;
        }
        Ok(values.into())
    }

    /// As [`Self::values`], for a tensor that has one of two shapes with as many values.
    pub fn values_of_either(
        &mut self,
        name: &str,
        one: &[usize],
        other: &[usize],
    ) -> Result<Vector, ModelError> {
        let is_other = |tensor: &TensorInfo| same_shape(tensor.dims(), other);
        let dims = if self.reader.model.tensor(name).is_some_and(is_other) { other } else { one };
        self.values(name, dims)
    }

    /// As [`Self::vector`]; `None` where the model lacks the tensor.
    pub fn opt_vector(&mut self, name: &str, n: usize) -> Result<Option<Vector>, ModelError> {
        self.has(name).then(|| self.vector(name, n)).transpose()
    }

    /// Counts a tensor as taken whose data its user reads itself (the embedding's rows).
    pub fn reference(&mut self, name: &str, dims: &[usize]) -> Result<TensorInfo, ModelError> {
        self.reader.checked(name, dims).cloned()
    }

    /// Counts a tensor as taken that an earlier loader has taken.
    pub fn taken_before(&mut self, name: &str) {
        self.reader.taken.insert(name.to_owned());
    }

    /// Checks that every tensor of `stage` was taken.
    ///
    /// # Errors
    /// Names the first that was not: the architecture's description does not cover this file.
    pub fn finish(self, stage: &[&TensorInfo]) -> Result<(), ModelError> {
        self.reader.finish(stage)
    }
}

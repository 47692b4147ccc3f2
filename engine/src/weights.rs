//! Where weights come from, and how blocks take them: by name, with the shape they must have.
//!
//! [`WeightLoader`] is strict: a tensor of the stage's layers that no block asked for is an error,
//! so a model with parts we do not compute never runs as if it had none.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::error::ModelError;
use crate::gguf::{Gguf, GgufError, TensorInfo};
use crate::kernels::{Compute, PackedMatrix};
use crate::quant::{self, GgmlType};

/// Bytes of a model's tensors: a mapped file, or a worker's cache of what it was sent.
pub trait TensorSource: Send + Sync {
    /// The tensor's data as the file holds it, `tensor.nbytes` bytes.
    ///
    /// # Errors
    /// This source does not have it.
    fn tensor<'a>(&'a self, tensor: &TensorInfo) -> Result<Cow<'a, [u8]>, GgufError>;

    /// Told that the tensor's data have been packed: the process need not hold what was mapped of them.
    /// They can be read again.
    fn release(&self, _tensor: &TensorInfo) {}
}

impl TensorSource for Gguf {
    fn tensor<'a>(&'a self, tensor: &TensorInfo) -> Result<Cow<'a, [u8]>, GgufError> {
        self.data(tensor).map(Cow::Borrowed)
    }

    fn release(&self, tensor: &TensorInfo) {
        self.advise_dont_need(tensor);
    }
}

/// Hands out the tensors of one stage, each checked for its shape.
pub struct WeightLoader<'a> {
    model: &'a Gguf,
    source: &'a dyn TensorSource,
    compute: &'a Compute,
    taken: BTreeSet<String>,
    /// Told the bytes of each tensor as it is taken.
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> WeightLoader<'a> {
    /// Loads from `source` what `model`'s directory lists.
    pub fn new(
        model: &'a Gguf,
        source: &'a dyn TensorSource,
        compute: &'a Compute,
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        Self { model, source, compute, taken: BTreeSet::new(), progress }
    }

    /// Whether the model has the tensor.
    pub fn has(&self, name: &str) -> bool {
        self.model.tensor(name).is_some()
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
    ) -> Result<(GgmlType, Cow<'a, [u8]>), ModelError> {
        let tensor = self.checked(name, dims)?;
        let bytes = self.source.tensor(tensor)?;
        (self.progress)(tensor.nbytes);
        Ok((tensor.ty, bytes))
    }

    /// A matrix from bytes that such a block made.
    pub fn pack(
        &self,
        ty: GgmlType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<PackedMatrix, ModelError> {
        Ok(PackedMatrix::pack(self.compute, ty, rows, cols, bytes)?)
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
        let tensor = self.checked(name, &[cols, rows])?;
        let bytes = self.source.tensor(tensor)?;
        (self.progress)(tensor.nbytes);
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
        let (ty, bytes) = self.raw(name, &[cols, rows, n])?;
        let scales = self.scales(name, n)?;
        let experts = bytes.chunks_exact(bytes.len() / n).zip(scales);
        experts
            .map(|(expert, scale)| Ok(self.pack(ty, rows, cols, expert)?.scaled(scale)))
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
        let (ty, bytes) = self.raw(name, &[cols, 2 * rows, n])?;
        let scales = self.scales(name, n)?;
        let (mut first, mut second) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for (i, half) in bytes.chunks_exact(bytes.len() / (2 * n)).enumerate() {
            let to = if i % 2 == 0 { &mut first } else { &mut second };
            to.push(self.pack(ty, rows, cols, half)?.scaled(scales[i / 2]));
        }
        Ok([first, second])
    }

    /// What the products of tensor `name`, `n` matrices, are multiplied with. NVFP4 has scales in eight bits
    /// only, so its tensors `X.weight` may have an f32 scale for each matrix in `X.scale`. `X.input_scale`
    /// would be for activations of four bits: ours have eight, and scales of their own.
    fn scales(&mut self, name: &str, n: usize) -> Result<Vec<f32>, ModelError> {
        let is_nvfp4 = self.model.tensor(name).is_some_and(|tensor| tensor.ty == GgmlType::NVFP4);
        let stem = name.strip_suffix(".weight").filter(|_| is_nvfp4);
        let Some(stem) = stem else { return Ok(vec![1.0; n]) };
        let of_inputs = format!("{stem}.input_scale");
        if self.has(&of_inputs) {
            self.taken.insert(of_inputs);
        }
        Ok(self.opt_vector(&format!("{stem}.scale"), n)?.unwrap_or_else(|| vec![1.0; n]))
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
        let tensor = self.checked(name, &[cols, all])?;
        let bytes = self.source.tensor(tensor)?;
        (self.progress)(tensor.nbytes);
        let scale = self.scales(name, 1)?[0];
        let mut left = &bytes[..];
        let mut blocks = Vec::with_capacity(N);
        for rows in rows {
            let (mine, rest) = left.split_at(rows * tensor.row_bytes());
            left = rest;
            blocks.push(self.pack(tensor.ty, rows, cols, mine)?.scaled(scale));
        }
        Ok(blocks.try_into().unwrap_or_else(|_| unreachable!("one block for each of rows")))
    }

    /// A vector of `n` values, in f32 whatever the file's type.
    pub fn vector(&mut self, name: &str, n: usize) -> Result<Vec<f32>, ModelError> {
        self.values(name, &[n])
    }

    /// All values of a tensor with dimensions `dims`, as the file orders them, in f32.
    pub fn values(&mut self, name: &str, dims: &[usize]) -> Result<Vec<f32>, ModelError> {
        let (ty, bytes) = self.raw(name, dims)?;
        let mut values = vec![0.0; dims.iter().product()];
        quant::require_format(ty, name)?.dequantize_row(&bytes, &mut values)?;
        Ok(values)
    }

    /// As [`Self::vector`], `None` where the model lacks it.
    pub fn opt_vector(&mut self, name: &str, n: usize) -> Result<Option<Vec<f32>>, ModelError> {
        self.has(name).then(|| self.vector(name, n)).transpose()
    }

    /// Counts a tensor as taken whose data its user reads itself (the embedding's rows).
    pub fn reference(&mut self, name: &str, dims: &[usize]) -> Result<TensorInfo, ModelError> {
        self.checked(name, dims).cloned()
    }

    /// Checks that every tensor of `stage` was taken.
    ///
    /// # Errors
    /// Names the first that was not: the architecture's description does not cover this file.
    pub fn finish(self, stage: &[&TensorInfo]) -> Result<(), ModelError> {
        match stage.iter().find(|t| !self.taken.contains(&t.name)) {
            Some(unknown) => Err(ModelError::Unsupported(format!(
                "tensor {} (no part of this architecture uses it)",
                unknown.name
            ))),
            None => Ok(()),
        }
    }

    fn checked(&mut self, name: &str, dims: &[usize]) -> Result<&'a TensorInfo, ModelError> {
        let Some(tensor) = self.model.tensor(name) else {
            return Err(GgufError::MissingTensor { name: name.to_owned() }.into());
        };
        let mut found = tensor.dims();
        while found.len() > dims.len()
            && let [shorter @ .., 1] | [1, shorter @ ..] = found
        {
            found = shorter;
        }
        if found != dims {
            return Err(ModelError::Bad(format!(
                "tensor {name} has dimensions {:?}, the metadata ask for {dims:?}",
                tensor.dims()
            )));
        }
        self.taken.insert(name.to_owned());
        Ok(tensor)
    }
}

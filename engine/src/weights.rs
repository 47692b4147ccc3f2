//! Sources of weights, and the loader by which blocks take tensors: by name, with the shape that they must have.
//!
//! [`WeightLoader`] is strict. A tensor of the stage's layers that no block asked for is an error. So a model
//! with parts that brigade does not compute never runs as if it had none.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::device::{Device, ExpertMatrices};
use crate::gguf::adapters::{self, Pair};
use crate::gguf::{Gguf, GgufError, TensorInfo};
use crate::kernels::{PackedMatrix, Vector};
use crate::quant::{self, GgmlType};
use crate::spec::ModelError;

/// Most values of a tensor that is not a matrix, where nothing is read: there need not be a file as large.
const MOST_HOLLOW_VALUES: usize = 1 << 28;

/// Bytes of a model's tensors: a mapped file, or a worker's cache of what it was sent.
pub trait TensorSource: Send + Sync {
    /// The tensor's data as the file holds it, `tensor.nbytes` bytes.
    ///
    /// # Errors
    /// The source does not have the tensor.
    fn tensor<'a>(&'a self, tensor: &TensorInfo) -> Result<Cow<'a, [u8]>, GgufError>;

    /// A part of the tensor's data, for one who does not need all of it at a time.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`], and where the tensor has no such part.
    fn part<'a>(
        &'a self,
        tensor: &TensorInfo,
        range: Range<usize>,
    ) -> Result<Cow<'a, [u8]>, GgufError> {
        let part = match self.tensor(tensor)? {
            Cow::Borrowed(bytes) => bytes.get(range).map(Cow::Borrowed),
            Cow::Owned(bytes) => bytes.get(range).map(|part| Cow::Owned(part.to_vec())),
        };
        part.ok_or_else(|| GgufError::MissingTensor { name: format!("{} (a part)", tensor.name) })
    }

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

/// Memory for routed experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExpertsPlace {
    /// First layer of the file whose experts may take the memory of the device that computes the rest.
    beside_before: usize,
}

impl ExpertsPlace {
    /// Experts of layers before `beside_before` lie elsewhere than the rest, if the device has such a place.
    ///
    /// # Errors
    /// The device's bits would depend on where they are.
    pub(crate) fn new(device: &Device, beside_before: u32) -> Result<Self, ModelError> {
        let beside_before = if device.has_beside() { beside_before as usize } else { 0 };
        if beside_before > 0 && device.has_fast_math() {
            return Err(ModelError::Unsupported(
                "experts in the host's memory beside a GPU with fast math, which would compute other bits than they: start \
                 without --fast-math, or with --experts device"
                    .to_owned(),
            ));
        }
        Ok(Self { beside_before })
    }

    /// Whether experts of this layer of the file are put elsewhere.
    pub(crate) fn is_beside(self, layer: usize) -> bool {
        layer < self.beside_before
    }
}

/// Hands out the tensors of one stage, each checked for its shape.
pub struct WeightLoader<'a> {
    model: &'a Gguf,
    source: &'a dyn TensorSource,
    /// The same, for who reads rows of it later.
    shared: Option<Arc<dyn TensorSource>>,
    device: &'a Device,
    taken: BTreeSet<String>,
    /// Places and rank of adapters inside the file, where projections have such.
    switched: Option<(usize, usize)>,
    /// Names and shapes are checked, and nothing is read or packed.
    is_hollow: bool,
    experts: ExpertsPlace,
    /// Whether experts of the layer that is loaded are put elsewhere.
    is_beside: bool,
    /// Whether what is loaded are experts.
    is_of_experts: bool,
    /// Told the bytes of each tensor as it is taken.
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> WeightLoader<'a> {
    /// Loads from `source` what `model`'s directory lists.
    pub fn new(
        model: &'a Gguf,
        source: &'a dyn TensorSource,
        device: &'a Device,
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        let (shared, taken, switched, is_hollow) = (None, BTreeSet::new(), None, false);
        Self {
            model,
            source,
            shared,
            device,
            taken,
            switched,
            is_hollow,
            experts: ExpertsPlace::default(),
            is_beside: false,
            is_of_experts: false,
            progress,
        }
    }

    /// Reads and packs nothing: what is loaded so has the right names and shapes, and no weights. To check a file's
    /// tensors by the very code that loads them.
    pub fn hollow(self) -> Self {
        Self { is_hollow: true, ..self }
    }

    /// Puts routed experts there.
    pub(crate) fn with_experts(self, experts: ExpertsPlace) -> Self {
        Self { experts, ..self }
    }

    /// Sets the layer of the file to which the next tensors belong.
    pub(crate) fn at_layer(&mut self, layer: usize) {
        self.is_beside = self.experts.is_beside(layer);
    }

    /// Has `load` load experts, where those of the layer shall lie.
    pub(crate) fn loading_experts<T>(&mut self, load: impl FnOnce(&mut Self) -> T) -> T {
        self.is_of_experts = true;
        let loaded = load(self);
        self.is_of_experts = false;
        loaded
    }

    /// Whether what is loaded has no weights.
    pub fn is_hollow(&self) -> bool {
        self.is_hollow
    }

    /// Blocks may keep `source`, which is the one that is loaded from, to read rows of a tensor later.
    pub fn sharing(self, source: Arc<dyn TensorSource>) -> Self {
        Self { shared: Some(source), ..self }
    }

    /// Refuses an index of so many heads where the device has no kernel for it.
    ///
    /// # Errors
    /// The device is a GPU, and that is too many for it.
    pub fn check_index(&self, heads: usize) -> Result<(), ModelError> {
        Ok(self.device.check_index(heads)?)
    }

    /// The source, for who keeps it.
    ///
    /// # Errors
    /// The source is not shared.
    pub fn shared(&self) -> Result<Arc<dyn TensorSource>, ModelError> {
        let missing = || ModelError::Bad("rows cannot be read from this source later".to_owned());
        self.shared.clone().ok_or_else(missing)
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
        self.checked(name, dims)
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
        Ok((tensor.ty, self.bytes_of(tensor)?))
    }

    /// All bytes of a tensor.
    fn bytes_of(&mut self, tensor: &'a TensorInfo) -> Result<Cow<'a, [u8]>, ModelError> {
        if self.is_hollow {
            return Ok(Cow::Borrowed(&[]));
        }
        let bytes = self.source.tensor(tensor)?;
        (self.progress)(tensor.nbytes);
        Ok(bytes)
    }

    /// A matrix from bytes that such a block made.
    pub fn pack(
        &self,
        ty: GgmlType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
    ) -> Result<PackedMatrix, ModelError> {
        Ok(if self.is_hollow {
            PackedMatrix::hollow(ty, rows, cols)?
        } else if self.is_beside && self.is_of_experts {
            self.device.pack_beside(ty, rows, cols, bytes)?
        } else {
            self.device.pack(ty, rows, cols, bytes)?
        })
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
        let bytes = self.bytes_of(tensor)?;
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
        let tensor = self.checked(name, &[cols, rows, n])?;
        let scales = self.scales(name, n)?;
        (0..n)
            .map(|i| {
                let expert = self.slice(tensor, n, i)?;
                Ok(self.pack(tensor.ty, rows, cols, &expert)?.scaled(scales[i]))
            })
            .collect()
    }

    /// Experts of one tensor, where products of all of them find them.
    pub fn together(&self, experts: Vec<Arc<PackedMatrix>>) -> Result<ExpertMatrices, ModelError> {
        Ok(self.device.experts(experts)?)
    }

    /// `n` matrices `[rows, cols]` of one tensor `{cols, rows * n}`, below each other in it.
    pub fn stacked(
        &mut self,
        name: &str,
        n: usize,
        rows: usize,
        cols: usize,
    ) -> Result<Vec<PackedMatrix>, ModelError> {
        let tensor = self.checked(name, &[cols, rows * n])?;
        let scale = self.scales(name, 1)?[0];
        (0..n)
            .map(|i| {
                let matrix = self.slice(tensor, n, i)?;
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
        let tensor = self.checked(name, &[cols, 2 * rows, n])?;
        let scales = self.scales(name, n)?;
        let (mut first, mut second) = (Vec::with_capacity(n), Vec::with_capacity(n));
        for i in 0..2 * n {
            let half = self.slice(tensor, 2 * n, i)?;
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
    ) -> Result<(GgmlType, Cow<'a, [u8]>), ModelError> {
        self.taken.insert(tensor.name.clone());
        Ok((tensor.ty, self.slice(tensor, n, i)?))
    }

    /// Slice `i` of `n` equal ones of a tensor: experts are many, and are not needed all at once.
    fn slice(
        &mut self,
        tensor: &'a TensorInfo,
        n: usize,
        i: usize,
    ) -> Result<Cow<'a, [u8]>, ModelError> {
        if self.is_hollow {
            return Ok(Cow::Borrowed(&[]));
        }
        let len = tensor.nbytes as usize / n;
        let bytes = self.source.part(tensor, i * len..(i + 1) * len)?;
        (self.progress)(bytes.len() as u64);
        Ok(bytes)
    }

    /// Factors on the products of tensor `name`, which has `n` matrices. NVFP4 has scales in eight bits only, and
    /// BitNet's ternary weights have none, so tensors `X.weight` may have an f32 scale for each matrix in `X.scale`.
    /// NVFP4's `X.input_scale` would be for activations of four bits: ours have eight, and scales of their own.
    fn scales(&mut self, name: &str, n: usize) -> Result<Vec<f32>, ModelError> {
        let is_nvfp4 = self.model.tensor(name).is_some_and(|tensor| tensor.ty == GgmlType::NVFP4);
        let Some(stem) = name.strip_suffix(".weight") else { return Ok(vec![1.0; n]) };
        let of_inputs = format!("{stem}.input_scale");
        if is_nvfp4 && self.has(&of_inputs) {
            self.taken.insert(of_inputs);
        }
        let scales = self.opt_vector(&format!("{stem}.scale"), n)?;
        Ok(scales.map_or_else(|| vec![1.0; n], Vector::into_vec))
    }

    /// Whether the model has adapters.
    pub fn has_adapters(&self) -> bool {
        !self.model.adapters().is_empty()
    }

    /// Matrices of each adapter for tensor `name`. Adapters without such are left out.
    pub fn adapters(&self, name: &str) -> Result<Vec<AdapterTensors<'a>>, ModelError> {
        let mut found = Vec::new();
        for (adapter, file) in self.model.adapters().iter().enumerate() {
            let Some(Pair { a, b }) = adapters::pair(self.model, name, adapter) else { continue };
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
        let tensor = self.checked(name, &[cols, all])?;
        let bytes = self.bytes_of(tensor)?;
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
        if self.is_hollow && n > MOST_HOLLOW_VALUES {
            let why = format!("tensor {name} has {n} values, the limit is {MOST_HOLLOW_VALUES}");
            return Err(ModelError::Bad(why));
        }
        let mut values = vec![0.0; n];
        if !self.is_hollow {
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
        let dims = if self.model.tensor(name).is_some_and(is_other) { other } else { one };
        self.values(name, dims)
    }

    /// As [`Self::vector`]; `None` where the model lacks the tensor.
    pub fn opt_vector(&mut self, name: &str, n: usize) -> Result<Option<Vector>, ModelError> {
        self.has(name).then(|| self.vector(name, n)).transpose()
    }

    /// Counts a tensor as taken whose data its user reads itself (the embedding's rows).
    pub fn reference(&mut self, name: &str, dims: &[usize]) -> Result<TensorInfo, ModelError> {
        self.checked(name, dims).cloned()
    }

    /// Counts a tensor as taken that an earlier loader has taken.
    pub fn taken_before(&mut self, name: &str) {
        self.taken.insert(name.to_owned());
    }

    /// Checks that every tensor of `stage` was taken.
    ///
    /// # Errors
    /// Names the first that was not: the architecture's description does not cover this file.
    pub fn finish(self, stage: &[&TensorInfo]) -> Result<(), ModelError> {
        match stage.iter().find(|t| !self.taken.contains(&t.name)) {
            Some(unknown) if adapters::of_model(&unknown.name).1 => {
                Err(ModelError::Unsupported(format!(
                    "tensor {} of an adapter (its number is behind the @): brigade applies no adapter to this tensor of \
                     the model. Make the adapter again without it, or merge it into the model",
                    unknown.name
                )))
            }
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
        if !same_shape(tensor.dims(), dims) {
            return Err(ModelError::Bad(format!(
                "tensor {name} has dimensions {:?}, the metadata ask for {dims:?}",
                tensor.dims()
            )));
        }
        self.taken.insert(name.to_owned());
        Ok(tensor)
    }
}

/// Whether a tensor with the dimensions `found` holds what is described as `wanted`. Dimensions of 1 at the
/// end say nothing: some writers drop them, others add some. A few files begin with them as well.
fn same_shape(found: &[usize], wanted: &[usize]) -> bool {
    let mut found = without_trailing_ones(found);
    while found.len() > wanted.len()
        && let [1, shorter @ ..] = found
    {
        found = shorter;
    }
    found == without_trailing_ones(wanted)
}

fn without_trailing_ones(mut dims: &[usize]) -> &[usize] {
    while let [shorter @ .., 1] = dims {
        dims = shorter;
    }
    dims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_of_one_at_the_end_do_not_tell_shapes_apart() {
        let same: [(&[usize], &[usize]); 8] = [
            (&[512], &[512, 1]),
            (&[512, 1], &[512]),
            (&[4, 1, 8], &[4, 1, 8]),
            (&[4, 1, 8, 1], &[4, 1, 8]),
            (&[4], &[4, 1, 1]),
            (&[1, 8], &[8]),
            (&[1, 8, 1], &[8]),
            (&[1], &[1, 1]),
        ];
        for (found, wanted) in same {
            assert!(same_shape(found, wanted), "{found:?} {wanted:?}");
        }
        let other: [(&[usize], &[usize]); 5] = [
            (&[512], &[512, 2]),
            (&[8, 4], &[4, 8]),
            (&[4, 8], &[4, 1, 8]),
            (&[1, 8], &[8, 1]),
            (&[7], &[8]),
        ];
        for (found, wanted) in other {
            assert!(!same_shape(found, wanted), "{found:?} {wanted:?}");
        }
    }
}

//! Reads the tensors of one stage: each by its name, with the shape that it must have, and noted as taken.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::source::{TensorBytes, TensorSource};
use crate::gguf::adapters;
use crate::gguf::{Gguf, GgufError, TensorInfo};
use crate::spec::ModelError;

/// The tensors of a file that one stage takes.
pub(super) struct TensorReader<'a> {
    pub(super) model: &'a Gguf,
    source: &'a dyn TensorSource,
    /// The same, for who reads rows of it later.
    pub(super) shared: Option<Arc<dyn TensorSource>>,
    pub(super) taken: BTreeSet<String>,
    /// Names and shapes are checked, and nothing is read.
    pub(super) is_hollow: bool,
    /// Told the bytes of each tensor as it is taken.
    progress: &'a mut dyn FnMut(u64),
}

impl<'a> TensorReader<'a> {
    /// Reads from `source` what `model`'s directory lists.
    pub(super) fn new(
        model: &'a Gguf,
        source: &'a dyn TensorSource,
        progress: &'a mut dyn FnMut(u64),
    ) -> Self {
        let (shared, taken, is_hollow) = (None, BTreeSet::new(), false);
        Self { model, source, shared, taken, is_hollow, progress }
    }

    /// The source, for who keeps it.
    ///
    /// # Errors
    /// The source is not shared.
    pub(super) fn shared(&self) -> Result<Arc<dyn TensorSource>, ModelError> {
        let missing = || ModelError::Bad("rows cannot be read from this source later".to_owned());
        self.shared.clone().ok_or_else(missing)
    }

    /// The directory's entry of a tensor that must have these dimensions. It counts as taken.
    ///
    /// # Errors
    /// The model lacks the tensor, or it has other dimensions.
    pub(super) fn checked(
        &mut self,
        name: &str,
        dims: &[usize],
    ) -> Result<&'a TensorInfo, ModelError> {
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

    /// All bytes of a tensor; none where nothing is read.
    ///
    /// # Errors
    /// The source does not have the tensor.
    pub(super) fn bytes_of(
        &mut self,
        tensor: &'a TensorInfo,
    ) -> Result<TensorBytes<'a>, ModelError> {
        if self.is_hollow {
            return Ok(TensorBytes::from(&[][..]));
        }
        let bytes = self.source.tensor(tensor)?;
        (self.progress)(tensor.nbytes);
        Ok(bytes)
    }

    /// Slice `i` of `n` equal ones of a tensor: experts are many, and are not needed all at once.
    ///
    /// # Errors
    /// The source does not have that part of the tensor.
    pub(super) fn slice(
        &mut self,
        tensor: &'a TensorInfo,
        n: usize,
        i: usize,
    ) -> Result<TensorBytes<'a>, ModelError> {
        if self.is_hollow {
            return Ok(TensorBytes::from(&[][..]));
        }
        let len = tensor.nbytes as usize / n;
        let bytes = self.source.part(tensor, i * len..(i + 1) * len)?;
        (self.progress)(bytes.len() as u64);
        Ok(bytes)
    }

    /// Checks that every tensor of `stage` was taken.
    ///
    /// # Errors
    /// Names the first that was not: the architecture's description does not cover this file.
    pub(super) fn finish(&self, stage: &[&TensorInfo]) -> Result<(), ModelError> {
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
}

/// Whether a tensor with the dimensions `found` holds what is described as `wanted`. Dimensions of 1 at the
/// end say nothing: some writers drop them, others add some. A few files begin with them as well.
pub(super) fn same_shape(found: &[usize], wanted: &[usize]) -> bool {
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

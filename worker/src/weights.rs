//! The bytes of a stage's tensors: a model file, or blobs of the cache, both mapped.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use brigade_engine::gguf::{Gguf, GgufError, MappedFile, TensorInfo};
use brigade_engine::weights::TensorSource;

/// Where tensors are read from.
pub enum Weights {
    /// A local model.
    File(Arc<Gguf>),
    /// One mapped blob a tensor, by name.
    Blobs(HashMap<String, MappedFile>),
}

impl Weights {
    /// Maps the blobs of tensors.
    ///
    /// # Errors
    /// A blob cannot be mapped.
    pub fn map_blobs<'a>(
        blobs: impl Iterator<Item = (String, &'a Path)>,
    ) -> Result<Self, GgufError> {
        blobs
            .map(|(name, path)| Ok((name, MappedFile::open(path)?)))
            .collect::<Result<_, _>>()
            .map(Self::Blobs)
    }

    /// Asks the system to read a tensor ahead. A hint.
    pub fn will_need(&self, tensor: &TensorInfo) {
        match self {
            Self::File(model) => model.advise_will_need(tensor),
            Self::Blobs(blobs) => {
                if let Some(blob) = blobs.get(&tensor.name) {
                    blob.will_need();
                }
            }
        }
    }
}

impl TensorSource for Weights {
    /// A blob of another size than the directory says counts as missing.
    fn tensor<'a>(&'a self, tensor: &TensorInfo) -> Result<Cow<'a, [u8]>, GgufError> {
        match self {
            Self::File(model) => model.data(tensor).map(Cow::Borrowed),
            Self::Blobs(blobs) => blobs
                .get(&tensor.name)
                .filter(|blob| blob.len() as u64 == tensor.nbytes)
                .map(|blob| Cow::Borrowed(&**blob))
                .ok_or_else(|| GgufError::MissingTensor { name: tensor.name.clone() }),
        }
    }

    fn release(&self, tensor: &TensorInfo) {
        match self {
            Self::File(model) => model.advise_dont_need(tensor),
            Self::Blobs(blobs) => {
                if let Some(blob) = blobs.get(&tensor.name) {
                    blob.dont_need();
                }
            }
        }
    }
}

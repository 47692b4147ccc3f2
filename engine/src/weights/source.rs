//! Sources of a model's weights.

use std::borrow::Cow;
use std::ops::Range;

use crate::gguf::{Gguf, GgufError, TensorInfo};

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

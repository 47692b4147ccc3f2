//! Sources of a model's weights.

use std::ops::{Deref, Range};

use crate::gguf::{Gguf, GgufError, TensorInfo};

/// Bytes of a model's tensors: a mapped file, or a worker's cache of what it was sent.
pub trait TensorSource: Send + Sync {
    /// The tensor's data as the file holds it, `tensor.nbytes` bytes.
    ///
    /// # Errors
    /// The source does not have the tensor.
    fn tensor<'a>(&'a self, tensor: &TensorInfo) -> Result<TensorBytes<'a>, GgufError>;

    /// A part of the tensor's data, for one who does not need all of it at a time.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`], and where the tensor has no such part.
    fn part<'a>(
        &'a self,
        tensor: &TensorInfo,
        range: Range<usize>,
    ) -> Result<TensorBytes<'a>, GgufError> {
        let part = match self.tensor(tensor)?.0 {
            Held::Borrowed(bytes) => bytes.get(range).map(TensorBytes::from),
            held => held.get(range).map(|part| part.to_vec().into()),
        };
        part.ok_or_else(|| GgufError::MissingTensor { name: format!("{} (a part)", tensor.name) })
    }

    /// Told that the tensor's data have been packed: the process need not hold what was mapped of them.
    /// They can be read again.
    fn release(&self, _tensor: &TensorInfo) {}
}

/// Bytes of a tensor, or of a part of it.
pub struct TensorBytes<'a>(Held<'a>);

enum Held<'a> {
    Borrowed(&'a [u8]),
    Owned(Vec<u8>),
    Lent(Box<dyn AsRef<[u8]> + Send>),
}

impl TensorBytes<'_> {
    /// Bytes in memory of the source. They are dropped when they have been packed, so that the source can use it for
    /// the next tensor.
    pub fn lent(bytes: impl AsRef<[u8]> + Send + 'static) -> Self {
        Self(Held::Lent(Box::new(bytes)))
    }
}

impl<'a> From<&'a [u8]> for TensorBytes<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self(Held::Borrowed(bytes))
    }
}

impl From<Vec<u8>> for TensorBytes<'_> {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Held::Owned(bytes))
    }
}

impl Deref for TensorBytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Deref for Held<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
            Self::Lent(bytes) => (**bytes).as_ref(),
        }
    }
}

impl TensorSource for Gguf {
    fn tensor<'a>(&'a self, tensor: &TensorInfo) -> Result<TensorBytes<'a>, GgufError> {
        self.data(tensor).map(TensorBytes::from)
    }

    fn release(&self, tensor: &TensorInfo) {
        self.advise_dont_need(tensor);
    }
}

//! GGUF files: a checked reader that copies nothing of a header in memory or of a memory map, and a writer.
//!
//! Every count, length and offset is checked against the file and a named cap before it is used. So a damaged
//! or hostile file is an error that names the field. It never causes a panic, a huge allocation or a read out
//! of bounds. A split model looks like one file, and adapters beside a
//! model are a part of it. Nothing here knows what the metadata and the tensors mean.
//!
//! Reading order:
//!
//! - [`Gguf`] is a model: one file, or several (`split`), with those of its [`adapters`].
//! - `parse` reads a file's header with the help of `cursor`: metadata ([`Meta`], [`Value`], [`Number`]) and the tensors
//!   (`directory`). `header` makes one header of those of all files.
//! - `bytes` and `files` have the tensors' data, mapped or read; `read` reads a header. `writer` writes a file.
//! - Beside them, [`npy`] reads and writes arrays of NumPy.

pub mod adapters;
mod bytes;
mod cursor;
mod directory;
mod error;
#[cfg(unix)]
mod files;
mod header;
mod meta;
pub mod npy;
mod number;
mod parse;
mod read;
mod split;
mod value;
mod writer;

pub use cursor::MAX_STRING_BYTES;
pub use directory::TensorInfo;
pub use error::GgufError;
#[cfg(unix)]
pub use files::{FileState, TensorFiles};
pub use header::MAX_HEADER_BYTES;
pub use meta::{ByteStrs, Meta};
pub use number::Number;
pub use parse::{
    DEFAULT_ALIGNMENT, MAX_ALIGNMENT, MAX_ARRAY_LEN, MAX_DIMS, MAX_KEY_BYTES, MAX_KEYS,
    MAX_TENSOR_NAME, MAX_TENSORS,
};
pub use split::MAX_SHARDS;
pub use value::{ArrayIter, ArrayRef, Value, ValueType};
pub use writer::{GgufWriter, MetaElement, MetaValue, TensorStream};

use adapters::Adapter;
use bytes::Bytes;
use header::{Extent, Part};
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A model: metadata, tensor directory and, unless opened for its header only, the tensors' data.
pub struct Gguf {
    name: String,
    meta: Meta,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    adapters: Vec<Adapter>,
    /// The model's files, then its adapters'.
    shards: Vec<Shard>,
}

/// One file of a model.
struct Shard {
    /// Name of the file, for messages.
    name: String,
    /// `None` when the bytes did not come from a file.
    path: Option<PathBuf>,
    bytes: Bytes,
    /// Bytes of the header without the padding after it.
    header_len: usize,
    has_data: bool,
}

impl Gguf {
    /// Opens a model and maps its data. For a split model `path` is the first file; the others are
    /// found beside it. A file that is cut off while it is mapped ends the process: what runs on opens
    /// models by [`Gguf::open_files`].
    ///
    /// # Errors
    /// A file cannot be read, breaks the format, or ends before its tensors do.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        Self::open_mapped(path.as_ref(), &[])
    }

    /// [`Gguf::open`] with adapters beside the model.
    ///
    /// # Errors
    /// As [`Gguf::open`], and a file among `adapters` that is none.
    pub fn open_with(path: impl AsRef<Path>, adapters: &[PathBuf]) -> Result<Self, GgufError> {
        Self::open_mapped(path.as_ref(), adapters)
    }

    /// Opens a model for its metadata and tensor directory, which are read into memory; the data need not
    /// be in the file. [`Gguf::data`] is an error then.
    ///
    /// # Errors
    /// A file cannot be read or its header breaks the format.
    pub fn open_header_only(path: impl AsRef<Path>) -> Result<Self, GgufError> {
        Self::open_header_only_with(path, &[])
    }

    /// [`Gguf::open_header_only`] with adapters beside the model.
    ///
    /// # Errors
    /// As [`Gguf::open_header_only`], and a file among `adapters` that is none.
    pub fn open_header_only_with(
        path: impl AsRef<Path>,
        adapters: &[PathBuf],
    ) -> Result<Self, GgufError> {
        let part = |no: usize, path: &Path| {
            let (_, header) = read::open_header(path)?;
            let name = path.display().to_string();
            Part::new(no, header, name, Some(path.to_owned()), Extent::Header)
        };
        Self::open_parts(path.as_ref(), adapters, part)
    }

    /// A model whose one file is in memory.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(bytes: Arc<[u8]>, name: &str) -> Result<Self, GgufError> {
        header::assemble(vec![Part::new(
            0,
            Bytes::Owned(bytes),
            name.to_owned(),
            None,
            Extent::Whole,
        )?])
    }

    /// The model behind [`Gguf::header_bytes`], without data. `name` is for messages.
    ///
    /// # Errors
    /// The bytes are not what `header_bytes` makes, or a header in them breaks the format.
    pub fn from_header_bytes(bytes: &[u8], name: &str) -> Result<Self, GgufError> {
        header::assemble(header::unpack(bytes, name)?)
    }

    /// The metadata and tensor directory of the model as bytes, for [`Gguf::from_header_bytes`] in
    /// another process: each shard's header as it stands in its file, in order, with a length before
    /// each. They depend on the files' headers alone, so equal hashes of them mean equal metadata and
    /// directories.
    pub fn header_bytes(&self) -> Vec<u8> {
        header::pack(&self.shards)
    }

    fn open_mapped(path: &Path, adapters: &[PathBuf]) -> Result<Self, GgufError> {
        let part = |no: usize, path: &Path| {
            let name = path.display().to_string();
            Part::new(no, Bytes::map(path)?, name, Some(path.to_owned()), Extent::Whole)
        };
        Self::open_parts(path, adapters, part)
    }

    /// The model whose first file is `path`, of parts that `part` opens by number and path.
    fn open_parts(
        path: &Path,
        adapters: &[PathBuf],
        part: impl Fn(usize, &Path) -> Result<Part, GgufError>,
    ) -> Result<Self, GgufError> {
        let mut parts = vec![part(0, path)?];
        for other in parts[0].other_paths(path)? {
            parts.push(part(parts.len(), &other)?);
        }
        for adapter in adapters {
            let part = part(parts.len(), adapter)?;
            part.check_adapter()?;
            parts.push(part);
        }
        header::assemble(parts)
    }

    /// The model's metadata; those of the first file when it is split.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The architecture, `general.architecture`.
    ///
    /// # Errors
    /// The key is missing or not a string.
    pub fn architecture(&self) -> Result<&str, GgufError> {
        self.meta.str("general.architecture")
    }

    /// Path or name of the (first) file, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Paths of the model's files in order; empty when it was not opened from files.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.shards.iter().filter_map(|shard| shard.path.as_deref())
    }

    /// The adapters beside the model, in the order in which they were given: that is their number.
    pub fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }

    /// Whether tensor data are at hand.
    pub fn has_data(&self) -> bool {
        self.shards.iter().all(|shard| shard.has_data)
    }

    /// All tensors, in the order of the files' directories.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The tensor of this name, if the model has it.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|i| &self.tensors[*i])
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// The model does not have it.
    pub fn require(&self, name: &str) -> Result<&TensorInfo, GgufError> {
        self.tensor(name).ok_or_else(|| GgufError::MissingTensor { name: name.to_owned() })
    }

    /// A tensor's bytes, `tensor.nbytes` of them; `tensor` is of this model's [`Gguf::tensors`].
    /// Their address is at any multiple of the file's own alignment, which may be 1.
    ///
    /// # Errors
    /// The object has no data, or the tensor is of another model and does not fit this one's files.
    pub fn data(&self, tensor: &TensorInfo) -> Result<&[u8], GgufError> {
        let no_data =
            |file: &str| GgufError::NoData { name: tensor.name.clone(), file: file.to_owned() };
        let shard = self.shards.get(tensor.shard).ok_or_else(|| no_data(&self.name))?;
        if !shard.has_data {
            return Err(no_data(&shard.name));
        }
        let range = byte_range(tensor).filter(|r| r.end <= shard.bytes.len());
        range.map(|r| &shard.bytes[r]).ok_or_else(|| {
            GgufError::malformed(
                &shard.name,
                format_args!("tensor {}", tensor.name),
                "is not of this file",
            )
        })
    }

    /// Tells the system that a tensor's data are not needed for now. A hint; does nothing without data.
    pub fn advise_dont_need(&self, tensor: &TensorInfo) {
        if let Some((shard, range)) = self.located(tensor) {
            shard.bytes.dont_need(range);
        }
    }

    fn located(&self, tensor: &TensorInfo) -> Option<(&Shard, Range<usize>)> {
        let shard = self.shards.get(tensor.shard).filter(|shard| shard.has_data)?;
        Some((shard, byte_range(tensor).filter(|r| r.end <= shard.bytes.len())?))
    }
}

/// Byte range of a tensor in its file.
fn byte_range(tensor: &TensorInfo) -> Option<Range<usize>> {
    let end = tensor.offset.checked_add(tensor.nbytes)?;
    Some(usize::try_from(tensor.offset).ok()?..usize::try_from(end).ok()?)
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (keys, tensors, files) = (self.meta.len(), self.tensors.len(), self.shards.len());
        write!(f, "Gguf({}: {keys} keys, {tensors} tensors, {files} files)", self.name)
    }
}

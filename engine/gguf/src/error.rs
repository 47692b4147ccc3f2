//! Errors of a GGUF file, sorted by the action that the caller can take.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error of reading or writing a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system refused: check the path, rights and disk.
    #[error("{}: {source}", path.display())]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file has changed since it was opened: open it again, when no program writes to it.
    #[error("{} has changed since it was opened: {problem}", path.display())]
    Changed {
        /// Path of the file.
        path: PathBuf,
        /// Evidence of the change.
        problem: String,
    },
    /// The file breaks the format: fetch it again.
    #[error("{file}: {field}: {problem}")]
    Malformed {
        /// Name of the file.
        file: String,
        /// The field that is wrong, e.g. `tensor 3 (blk.0.attn_q.weight) offset`.
        field: String,
        /// The contradiction or damage that was found.
        problem: String,
    },
    /// The file is well-formed, but of a kind that this reader does not read.
    #[error("{file}: {problem}")]
    Unsupported {
        /// Name of the file.
        file: String,
        /// Kind of file, and the action to take instead.
        problem: String,
    },
    /// The model lacks a metadata key that is needed.
    #[error("metadata key {key} is missing (wanted {wanted})")]
    MissingKey {
        /// Key that is missing.
        key: String,
        /// The type it should have.
        wanted: &'static str,
    },
    /// A metadata key holds another type than its meaning asks for.
    #[error("metadata key {key} is {found}, wanted {wanted}")]
    WrongType {
        /// Key of the value.
        key: String,
        /// The type found, e.g. `array of 3 str`.
        found: String,
        /// Type that was wanted.
        wanted: String,
    },
    /// A metadata key has the right type and a value that makes no sense.
    #[error("metadata key {key}: {problem}")]
    BadValue {
        /// Key of the value.
        key: String,
        /// Reason why the value is refused.
        problem: String,
    },
    /// The model lacks a tensor that is needed.
    #[error("tensor {name} is missing")]
    MissingTensor {
        /// Name of the tensor.
        name: String,
    },
    /// The tensor's data was asked of an object that holds the header alone.
    #[error("no data for tensor {name}: {file} was opened for its header only")]
    NoData {
        /// Name of the tensor.
        name: String,
        /// Name of the file.
        file: String,
    },
    /// The writer was given something that no reader would accept.
    #[error("cannot write {field}: {problem}")]
    Unwritable {
        /// The key or tensor.
        field: String,
        /// Reason why no reader would accept it.
        problem: String,
    },
}

impl GgufError {
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(super) fn malformed(
        file: &str,
        field: impl fmt::Display,
        problem: impl fmt::Display,
    ) -> Self {
        Self::Malformed {
            file: file.to_owned(),
            field: field.to_string(),
            problem: problem.to_string(),
        }
    }

    pub(super) fn unwritable(field: impl fmt::Display, problem: impl fmt::Display) -> Self {
        Self::Unwritable { field: field.to_string(), problem: problem.to_string() }
    }
}

//! What can be wrong with a GGUF file, sorted by what the caller can do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// An error of reading or writing a GGUF file.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The operating system refused: check the path, rights and disk.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The file is no longer what was opened: open it again, when nobody writes to it.
    #[error("{} has changed since it was opened: {problem}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// How that shows.
        problem: String,
    },
    /// The file breaks the format: fetch it again.
    #[error("{file}: {field}: {problem}")]
    Malformed {
        /// The file's name.
        file: String,
        /// The field that is wrong, e.g. `tensor 3 (blk.0.attn_q.weight) offset`.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The file is well-formed, but of a kind that this reader does not read.
    #[error("{file}: {problem}")]
    Unsupported {
        /// The file's name.
        file: String,
        /// What kind, and what to do instead.
        problem: String,
    },
    /// The model lacks a metadata key that is needed.
    #[error("metadata key {key} is missing (wanted {wanted})")]
    MissingKey {
        /// The key.
        key: String,
        /// The type it should have.
        wanted: &'static str,
    },
    /// A metadata key holds another type than its meaning asks for.
    #[error("metadata key {key} is {found}, wanted {wanted}")]
    WrongType {
        /// The key.
        key: String,
        /// The type found, e.g. `array of 3 str`.
        found: String,
        /// The type wanted.
        wanted: String,
    },
    /// A metadata key has the right type and a value that makes no sense.
    #[error("metadata key {key}: {problem}")]
    BadValue {
        /// The key.
        key: String,
        /// What is wrong with the value.
        problem: String,
    },
    /// The model lacks a tensor that is needed.
    #[error("tensor {name} is missing")]
    MissingTensor {
        /// Its name.
        name: String,
    },
    /// The tensor's data was asked of an object that holds the header alone.
    #[error("no data for tensor {name}: {file} was opened for its header only")]
    NoData {
        /// The tensor.
        name: String,
        /// The file.
        file: String,
    },
    /// The writer was given something that no reader would accept.
    #[error("cannot write {field}: {problem}")]
    Unwritable {
        /// The key or tensor.
        field: String,
        /// What is wrong with it.
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

//! A piece of a copy: bytes in memory, or where they are in a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;

/// Bytes of a copy, wherever they are.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Here.
    Memory(Bytes),
    /// In a file.
    File {
        /// Which.
        file: Arc<File>,
        /// From where.
        offset: u64,
        /// How many.
        len: u64,
    },
}

impl Piece {
    /// Bytes it has.
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File { len, .. } => *len,
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets all but its first `len` bytes.
    pub fn shorten(&mut self, to: u64) {
        match self {
            Self::Memory(bytes) => bytes.truncate(usize::try_from(to).unwrap_or(usize::MAX)),
            Self::File { len, .. } => *len = to.min(*len),
        }
    }

    /// The bytes. Blocks where they are in a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> io::Result<Bytes> {
        match self {
            Self::Memory(bytes) => Ok(bytes.clone()),
            Self::File { file, offset, len } => {
                let mut bytes = vec![0; usize::try_from(*len).unwrap_or(usize::MAX)];
                file.read_exact_at(&mut bytes, *offset)?;
                Ok(bytes.into())
            }
        }
    }
}

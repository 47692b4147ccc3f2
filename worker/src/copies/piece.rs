//! A piece of a copy: bytes in memory, or a range of a file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

/// Bytes of a copy, wherever they are.
#[derive(Clone, Debug)]
pub enum Piece {
    /// Bytes in memory.
    Memory(Bytes),
    /// A range of a file. It is opened when it is read: a sequence has many.
    File {
        /// Where the file is.
        path: Arc<Path>,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
}

impl Piece {
    /// Number of bytes.
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

    /// The first `to` bytes of the piece. In memory they are not copied, so the rest of the piece is kept for as long
    /// as they are.
    pub fn head(&self, to: u64) -> Self {
        self.part(0, to.min(self.len()))
    }

    /// Frees all but its first `len` bytes.
    pub fn shorten(&mut self, to: u64) {
        *self = match self.head(to) {
            Self::Memory(bytes) => Self::Memory(Bytes::copy_from_slice(&bytes)),
            file @ Self::File { .. } => file,
        };
    }

    /// `nbytes` of the piece from `begin` on, without reading them. In memory they are not copied.
    pub fn part(&self, begin: u64, nbytes: u64) -> Self {
        match self {
            Self::Memory(bytes) => {
                Self::Memory(bytes.slice(begin as usize..(begin + nbytes) as usize))
            }
            Self::File { path, offset, .. } => {
                Self::File { path: path.clone(), offset: offset + begin, len: nbytes }
            }
        }
    }

    /// The bytes of the piece. Blocks where they are in a file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> io::Result<Bytes> {
        match self {
            Self::Memory(bytes) => Ok(bytes.clone()),
            Self::File { path, offset, len } => {
                let mut bytes = vec![0; usize::try_from(*len).unwrap_or(usize::MAX)];
                File::open(path)?.read_exact_at(&mut bytes, *offset)?;
                Ok(bytes.into())
            }
        }
    }
}

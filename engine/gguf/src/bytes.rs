//! The bytes of a file, mapped or owned. The only `unsafe` of the GGUF reader is here.

use super::error::GgufError;
use std::fs::File;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

/// A whole file (or header) that can be shared without a copy.
#[derive(Clone)]
pub(super) enum Bytes {
    Mapped(Arc<memmap2::Mmap>),
    Owned(Arc<[u8]>),
}

impl Bytes {
    /// Maps the file at `path`, read-only.
    pub fn map(path: &Path) -> Result<Self, GgufError> {
        let io = |source| GgufError::io(path, source);
        let file = File::open(path).map_err(io)?;
        if !file.metadata().map_err(io)?.is_file() {
            return Err(io(std::io::Error::other("not a regular file")));
        }
        // SAFETY: the map is read-only and private to readers. Mapped bytes are assumed not to change.
        // Another process that writes to a model file in use, or cuts it off, breaks that. As with every
        // program that maps its weights, the operator promises not to do so. All lengths were checked against
        // the size at opening. Values read are plain integers and floats, for which every bit pattern is
        // valid; strings are validated each time they are read.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Ok(Self::Mapped(Arc::new(map)))
    }

    /// Tells the system that `range` is not needed for now; its memory can go to others. A hint.
    #[cfg(unix)]
    pub fn dont_need(&self, range: Range<usize>) {
        if let Self::Mapped(map) = self {
            // SAFETY: DONTNEED drops pages of a mapping; here they are clean pages of a read-only
            // file mapping, so a later access reads the same bytes from the file again.
            let _ = unsafe {
                map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    range.start,
                    range.len(),
                )
            };
        }
    }

    /// No such hint on this system.
    #[cfg(not(unix))]
    pub fn dont_need(&self, _range: Range<usize>) {}
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Owned(bytes) => bytes,
        }
    }
}

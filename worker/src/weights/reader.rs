//! Reads the bytes of a stage's tensors, from a model file or from blobs of the cache. They are never mapped. So a
//! file that is truncated or written to while it is loaded gives an error that names it, and does not end the
//! process.
//!
//! The engine packs tensors as they come, so their bytes are held only for as long as that takes, in memory that all of
//! them use in turn ([`ReadingBuffer`]). The
//! embedding is the exception. Its rows are looked up for as long as the stage lives, so its bytes are kept. Rows of
//! larger tables are read each time.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use brigade_engine::device::Mapping;
use brigade_engine::weights::{TensorBytes, TensorSource};
use brigade_gguf::{FileState, GgufError, TensorFiles, TensorInfo};
use rayon::prelude::*;
use rustix::fs::{Advice, fadvise};
use tokio_util::sync::CancellationToken;

use super::cache::CachedBlob;
use super::reading_buffer::ReadingBuffer;
use crate::machine::reading_threads::Pool;

/// Bytes that one thread reads at a time.
const PIECE_BYTES: usize = 4 << 20;

/// Most bytes that have memory of their own each: vectors, and rows that are read while the line runs.
const SMALL_BYTES: usize = 64 << 10;

/// Where tensors are read from.
pub enum Source {
    /// A local model's files.
    Files(TensorFiles),
    /// One blob of the cache a tensor, by name.
    Blobs(HashMap<String, CachedBlob>),
}

/// The weights of a stage that is being built.
pub struct Weights {
    source: Source,
    pool: Pool,
    given_up: CancellationToken,
    is_loaded: AtomicBool,
    kept: OnceLock<(String, Mapping)>,
    buffer: ReadingBuffer,
}

impl Weights {
    /// Weights of `source`, read by `pool`'s threads; from `given_up` on nothing more is read.
    pub fn new(source: Source, pool: Pool, given_up: CancellationToken) -> Self {
        let (is_loaded, kept) = (AtomicBool::new(false), OnceLock::new());
        Self { source, pool, given_up, is_loaded, kept, buffer: ReadingBuffer::default() }
    }

    /// All weights of the order are loaded. Rows of embeddings are still read after the order is over, since the next
    /// stage may have the same layers.
    pub fn loaded(&self) {
        self.is_loaded.store(true, Ordering::Relaxed);
    }

    /// Whoever has these weights may keep them for a long time, but nothing more is loaded of them: the memory that tensors
    /// were read into goes back to the system.
    pub fn end_loading(&self) {
        self.buffer.end();
    }

    /// Asks the system to read a tensor ahead. A hint.
    pub fn will_need(&self, tensor: &TensorInfo) {
        let advise = |file: &File, at| {
            // Without it loading waits for the disk more often.
            if let Err(reason) = fadvise(file, at, NonZeroU64::new(tensor.nbytes), Advice::WillNeed)
            {
                tracing::debug!(%reason, tensor = tensor.name, "a tensor cannot be read ahead: loading may take longer");
            }
        };
        match &self.source {
            Source::Files(files) => {
                if let Some((file, at)) = files.place(tensor) {
                    advise(file, at);
                }
            }
            Source::Blobs(blobs) => {
                if let Some(file) = blobs.get(&tensor.name).and_then(|b| File::open(&b.path).ok()) {
                    advise(&file, 0);
                }
            }
        }
    }

    /// Reads a tensor that will be asked for again and again, and holds it in memory. One stage has
    /// one such tensor.
    ///
    /// # Errors
    /// As [`TensorSource::tensor`].
    pub fn keep(&self, tensor: &TensorInfo) -> Result<(), GgufError> {
        let range = 0..tensor.nbytes as usize;
        self.check(tensor, &range)?;
        let mut bytes = Mapping::new(range.len()).map_err(|error| unread(tensor, error))?;
        self.read(tensor, range, &mut bytes)?;
        // A second one would be read anew each time, which is slow and right.
        let _ = self.kept.set((tensor.name.clone(), bytes));
        Ok(())
    }

    /// Checks that the bytes read are of the files' state when they were opened. Blobs are checked as they are read.
    ///
    /// # Errors
    /// [`GgufError::Changed`].
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        match &self.source {
            Source::Files(files) => files.check_unchanged(),
            Source::Blobs(_) => Ok(()),
        }
    }

    fn kept(&self, tensor: &TensorInfo) -> Option<&[u8]> {
        self.kept.get().filter(|(name, _)| *name == tensor.name).map(|(_, bytes)| &bytes[..])
    }

    /// Checks before memory is taken that the tensor has the range, and that it is still wanted.
    fn check(&self, tensor: &TensorInfo, range: &Range<usize>) -> Result<(), GgufError> {
        if self.given_up.is_cancelled() && !self.is_loaded.load(Ordering::Relaxed) {
            return Err(unread(tensor, io::Error::other("loading was given up")));
        }
        if range.end as u64 > tensor.nbytes || range.start > range.end {
            return Err(GgufError::MissingTensor { name: tensor.name.clone() });
        }
        Ok(())
    }

    /// Fills `out` with a range that was checked, as long as that.
    fn read(
        &self,
        tensor: &TensorInfo,
        range: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), GgufError> {
        let from = range.start as u64;
        match &self.source {
            Source::Files(files) => {
                let filled = self.fill(out, |at, piece| files.read(tensor, from + at, piece));
                if self.is_loaded.load(Ordering::Relaxed) {
                    // Rows that are read while the line runs are those that it was loaded with. (What is loaded is looked at
                    // once, when all of it is.)
                    files.check_unchanged_at(tensor)?;
                }
                filled?;
            }
            Source::Blobs(blobs) => {
                let blob = blobs.get(&tensor.name).filter(|b| b.state.nbytes == tensor.nbytes);
                let missing = || GgufError::MissingTensor { name: tensor.name.clone() };
                self.read_blob(blob.ok_or_else(missing)?, from, out)?;
            }
        }
        Ok(())
    }

    fn read_blob(&self, blob: &CachedBlob, from: u64, out: &mut [u8]) -> Result<(), GgufError> {
        let CachedBlob { path, state } = blob;
        let failed = |source| GgufError::Io { path: path.clone(), source };
        let file = File::open(path).map_err(failed)?;
        same_state(path, &file, state)?;
        let filled =
            self.fill(out, |at, piece| file.read_exact_at(piece, from + at).map_err(failed));
        // That it was cut off says more than that the reading ended early.
        same_state(path, &file, state)?;
        filled
    }

    /// Fills `out` piece by piece, on all threads where there is more than one piece. `read` is told where
    /// in `out` its piece begins.
    fn fill(
        &self,
        out: &mut [u8],
        read: impl Fn(u64, &mut [u8]) -> Result<(), GgufError> + Sync,
    ) -> Result<(), GgufError> {
        if out.len() <= PIECE_BYTES {
            return read(0, out);
        }
        let pieces = out.par_chunks_mut(PIECE_BYTES).enumerate();
        self.pool.run(|| pieces.try_for_each(|(i, piece)| read((i * PIECE_BYTES) as u64, piece)))
    }
}

/// The error where the bytes of a tensor could not be had.
fn unread(tensor: &TensorInfo, source: io::Error) -> GgufError {
    GgufError::Io { path: tensor.name.clone().into(), source }
}

/// Checks that a cached blob has not changed since it was verified.
fn same_state(path: &Path, file: &File, state: &FileState) -> Result<(), GgufError> {
    let now = FileState::of(file).map_err(|source| GgufError::Io { path: path.into(), source })?;
    if now == *state {
        return Ok(());
    }
    let problem = "this cached blob was written to or exchanged".to_owned();
    Err(GgufError::Changed { path: path.into(), problem })
}

impl TensorSource for Weights {
    /// A blob of another size than the directory says counts as missing.
    fn tensor<'a>(&'a self, tensor: &TensorInfo) -> Result<TensorBytes<'a>, GgufError> {
        self.part(tensor, 0..tensor.nbytes as usize)
    }

    fn part<'a>(
        &'a self,
        tensor: &TensorInfo,
        range: Range<usize>,
    ) -> Result<TensorBytes<'a>, GgufError> {
        if let Some(part) = self.kept(tensor).and_then(|kept| kept.get(range.clone())) {
            return Ok(part.into());
        }
        self.check(tensor, &range)?;
        if range.len() <= SMALL_BYTES {
            let mut bytes = vec![0; range.len()];
            self.read(tensor, range, &mut bytes)?;
            return Ok(bytes.into());
        }
        let lent = self.buffer.lend(range.len());
        let mut lent = lent.map_err(|error| unread(tensor, error))?;
        self.read(tensor, range, lent.bytes_mut())?;
        Ok(TensorBytes::lent(lent))
    }
}

#[cfg(test)]
mod tests {
    use brigade_quant::GgmlType;

    use super::*;

    /// A layer that stays for the next order reads rows of its table on, though its own order is over.
    #[test]
    fn what_is_loaded_is_read_on_after_its_order_is_over() {
        let path = std::env::temp_dir().join(format!("brigade-weights-{}", std::process::id()));
        std::fs::write(&path, [1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        let tensor = TensorInfo {
            name: "table".to_owned(),
            ty: GgmlType::F32,
            n_dims: 2,
            ne: [1, 2, 1, 1],
            shard: 0,
            offset: 0,
            nbytes: 8,
        };
        let state = FileState::of(&File::open(&path).unwrap()).unwrap();
        let blob = CachedBlob { path: path.clone(), state };
        let blobs = Source::Blobs([(tensor.name.clone(), blob)].into());
        let (pool, given_up) = (Pool::new(1, &[]).unwrap(), CancellationToken::new());
        let weights = Weights::new(blobs, pool, given_up.clone());
        assert_eq!(*weights.part(&tensor, 4..8).unwrap(), [5, 6, 7, 8]);
        given_up.cancel();
        assert!(weights.part(&tensor, 4..8).is_err());
        weights.loaded();
        assert_eq!(*weights.part(&tensor, 4..8).unwrap(), [5, 6, 7, 8]);
        std::fs::remove_file(&path).unwrap();
    }
}

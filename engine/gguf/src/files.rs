//! A model's tensors, read from its open files and not mapped. Long-lived processes use this. A file that is
//! cut off while it is mapped ends the process with a signal. While it is read, that is only an error.
//!
//! [`FileState`] tells one state of a file from another. It promises to change with every write, truncation, exchange
//! or setting of times, because the system itself stamps the change time (`ctime`), which programs cannot set. It does
//! not notice:
//!
//! - a second change within one tick of the clock that stamps (see [`FileState::is_settled`]; the tick is
//!   milliseconds, or a second or two on old file systems);
//! - bytes that rot on the disk, and writes to the disk below the file system;
//! - a clock that is set back.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::Gguf;
use super::directory::TensorInfo;
use super::error::GgufError;
use super::header::{self, Extent, Part};
use super::read::{cut_off, open_header};

/// Change times younger than this may be followed by another change with the same one: file systems stamp
/// by clocks of milliseconds, some of one or two seconds.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// Identity of a file's state on one machine, by which a change is noticed. The module says what it promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileState {
    /// Size in bytes.
    pub nbytes: u64,
    /// Modification time, nanoseconds since the Unix epoch. Any owner of the file can set it.
    pub mtime_ns: i64,
    /// Change time, nanoseconds since the Unix epoch. Set by the system with every change.
    pub ctime_ns: i64,
    /// Number within its file system.
    pub inode: u64,
    /// Number of the file system.
    pub device: u64,
}

impl FileState {
    /// The state of an open file.
    ///
    /// # Errors
    /// The system's.
    pub fn of(file: &File) -> io::Result<Self> {
        file.metadata().map(|meta| Self::from(&meta))
    }

    /// Whether the change time is old enough that any later change has another one.
    pub fn is_settled(&self, now: SystemTime) -> bool {
        let now_ns = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as i128;
        now_ns - i128::from(self.ctime_ns) >= SETTLED_AFTER.as_nanos() as i128
    }
}

impl From<&Metadata> for FileState {
    fn from(meta: &Metadata) -> Self {
        let ns = |seconds: i64, ns: i64| seconds.saturating_mul(1_000_000_000).saturating_add(ns);
        Self {
            nbytes: meta.len(),
            mtime_ns: ns(meta.mtime(), meta.mtime_nsec()),
            ctime_ns: ns(meta.ctime(), meta.ctime_nsec()),
            inode: meta.ino(),
            device: meta.dev(),
        }
    }
}

/// The open files of a model, one a shard.
#[derive(Debug)]
pub struct TensorFiles {
    files: Vec<OpenFile>,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: File,
    state: FileState,
}

impl Gguf {
    /// Opens a model without mapping it: its header in memory, and its files, which tensors are read
    /// from. [`Gguf::data`] of it is an error.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn open_files(path: impl AsRef<Path>) -> Result<(Self, TensorFiles), GgufError> {
        Self::open_files_with(path, &[])
    }

    /// [`Gguf::open_files`] with adapters beside the model.
    ///
    /// # Errors
    /// As [`Gguf::open_with`].
    pub fn open_files_with(
        path: impl AsRef<Path>,
        adapters: &[PathBuf],
    ) -> Result<(Self, TensorFiles), GgufError> {
        Self::open_each(path.as_ref(), |_| adapters)
    }

    /// [`Gguf::open_files_with`] of the files of a model, in order, with those of its adapters behind them.
    ///
    /// # Errors
    /// As [`Gguf::open_with`]; there is no file.
    pub fn open_listed(paths: &[PathBuf]) -> Result<(Self, TensorFiles), GgufError> {
        let Some(first) = paths.first() else {
            return Err(GgufError::malformed("a model", "its files", "there is none"));
        };
        Self::open_each(first, |n_files| paths.get(n_files..).unwrap_or_default())
    }

    /// Opens a model whose first file is `path`, with the adapters that `adapters_of` has for its number of files.
    fn open_each<'a>(
        path: &Path,
        adapters_of: impl FnOnce(usize) -> &'a [PathBuf],
    ) -> Result<(Self, TensorFiles), GgufError> {
        let (part, file) = read_part(0, path)?;
        let others = part.other_paths(path)?;
        let (mut parts, mut files) = (vec![part], vec![file]);
        for other in others {
            let (part, file) = read_part(parts.len(), &other)?;
            parts.push(part);
            files.push(file);
        }
        for adapter in adapters_of(parts.len()) {
            let (part, file) = read_part(parts.len(), adapter)?;
            part.check_adapter()?;
            parts.push(part);
            files.push(file);
        }
        Ok((header::assemble(parts)?, TensorFiles { files }))
    }
}

/// Opens shard `no` and reads its header.
fn read_part(no: usize, path: &Path) -> Result<(Part, OpenFile), GgufError> {
    let io = |source| GgufError::io(path, source);
    let (file, header) = open_header(path)?;
    let state = FileState::of(&file).map_err(io)?;
    let name = path.display().to_string();
    let extent = Extent::HeaderOf { file_len: state.nbytes };
    let part = Part::new(no, header, name, Some(path.to_owned()), extent)?;
    Ok((part, OpenFile { path: path.to_owned(), file, state }))
}

/// Fills `out` from `offset` on; a file that ends before was cut off.
fn read_at(file: &File, path: &Path, out: &mut [u8], offset: u64) -> Result<(), GgufError> {
    let end = offset.saturating_add(out.len() as u64);
    file.read_exact_at(out, offset).map_err(|source| cut_off(path, end, source))
}

impl TensorFiles {
    /// The files' states when they were opened, with their paths.
    pub fn states(&self) -> impl Iterator<Item = (&Path, &FileState)> {
        self.files.iter().map(|open| (open.path.as_path(), &open.state))
    }

    /// Fills `out` with a tensor's bytes from `from` on.
    ///
    /// # Errors
    /// [`GgufError::Changed`] for a file that was cut off; [`GgufError::Io`]; the tensor is not of this
    /// model, or has no such bytes.
    pub fn read(&self, tensor: &TensorInfo, from: u64, out: &mut [u8]) -> Result<(), GgufError> {
        let inside = from.checked_add(out.len() as u64).is_some_and(|end| end <= tensor.nbytes);
        let at = tensor.offset.checked_add(from).filter(|_| inside);
        match (self.files.get(tensor.shard), at) {
            (Some(open), Some(at)) => read_at(&open.file, &open.path, out, at),
            _ => Err(GgufError::MissingTensor { name: tensor.name.clone() }),
        }
    }

    /// File and offset of a tensor, for hints to the system.
    pub fn place(&self, tensor: &TensorInfo) -> Option<(&File, u64)> {
        self.files.get(tensor.shard).map(|open| (&open.file, tensor.offset))
    }

    /// Checks that no file has changed since it was opened: what was read before is of that state.
    ///
    /// # Errors
    /// [`GgufError::Changed`], [`GgufError::Io`].
    pub fn check_unchanged(&self) -> Result<(), GgufError> {
        self.files.iter().try_for_each(OpenFile::check_unchanged)
    }

    /// The same of the file of one tensor.
    ///
    /// # Errors
    /// As [`TensorFiles::check_unchanged`].
    pub fn check_unchanged_at(&self, tensor: &TensorInfo) -> Result<(), GgufError> {
        self.files.get(tensor.shard).map_or(Ok(()), OpenFile::check_unchanged)
    }
}

impl OpenFile {
    fn check_unchanged(&self) -> Result<(), GgufError> {
        let Self { path, file, state } = self;
        let meta = file.metadata().map_err(|e| GgufError::io(path, e))?;
        let mut now = FileState::from(&meta);
        if meta.nlink() == 0 {
            // Another file has taken its name, which stamps the change time too. What is open is as it was.
            now.ctime_ns = state.ctime_ns;
        }
        if now == *state {
            return Ok(());
        }
        let problem = if now.nbytes < state.nbytes {
            format!("it was cut off, from {} to {} bytes", state.nbytes, now.nbytes)
        } else {
            "it was written to".to_owned()
        };
        Err(GgufError::Changed { path: path.clone(), problem })
    }
}

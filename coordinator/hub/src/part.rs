//! An incomplete file, with a note of the file that it is a part of. A download goes on only for the same file.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::error::HubError;
use super::hash::Sha256;

/// The identity of the complete file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whole {
    /// Bytes of the whole file.
    pub size: u64,
    /// SHA-256 of the whole file, where the source tells it.
    #[serde(default)]
    pub sha256: Option<String>,
    /// The server's ETag for this state of the file; strong ones only.
    #[serde(default)]
    pub etag: Option<String>,
}

/// An incomplete file, open for writing.
#[derive(Debug)]
pub struct PartFile {
    target: PathBuf,
    file: File,
    /// The complete file that it is a part of.
    pub whole: Whole,
    /// Bytes that are there.
    pub length: u64,
    hash: HashState,
}

/// The hash of the bytes so far.
#[derive(Clone)]
struct HashState(Sha256);

impl std::fmt::Debug for HashState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sha256")
    }
}

impl PartFile {
    /// Opens the partial download of `target`, or begins it; bytes of another file are deleted.
    ///
    /// # Errors
    /// The system's.
    pub fn open(target: &Path, whole: Whole) -> Result<Self, HubError> {
        let (path, side) = paths(target);
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).map_err(HubError::io("make", folder))?;
        }
        let opened =
            File::options().create(true).truncate(false).read(true).write(true).open(&path);
        let file = opened.map_err(HubError::io("open", &path))?;
        let kept: Option<Whole> =
            fs::read(&side).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let is_same = kept
            .as_ref()
            .is_some_and(|kept| kept.size == whole.size && kept.sha256 == whole.sha256);
        let (hash, length) = Sha256::of_start(&file).map_err(HubError::io("read", &path))?;
        let whole = Whole { etag: kept.and_then(|kept| kept.etag), ..whole };
        let target = target.to_path_buf();
        let mut part = Self { target, file, whole, length, hash: HashState(hash) };
        if !is_same || part.length > part.whole.size {
            part.begin_anew(None)?;
        }
        Ok(part)
    }

    /// Deletes the bytes so far: the download begins again, of the file's state `etag`.
    ///
    /// # Errors
    /// The system's.
    pub fn begin_anew(&mut self, etag: Option<String>) -> Result<(), HubError> {
        let (path, _) = paths(&self.target);
        self.file.set_len(0).map_err(HubError::io("cut", &path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(HubError::io("cut", &path))?;
        self.length = 0;
        self.hash = HashState(Sha256::default());
        self.whole.etag = etag;
        self.keep()
    }

    /// Records which file it is a part of.
    ///
    /// # Errors
    /// The system's.
    pub fn keep(&self) -> Result<(), HubError> {
        let (_, side) = paths(&self.target);
        let text = serde_json::to_vec(&self.whole).unwrap_or_default();
        fs::write(&side, text).map_err(|error| full(error, &side))
    }

    /// Adds bytes at its end.
    ///
    /// # Errors
    /// The disk is full, or another one of the system's.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        let (path, _) = paths(&self.target);
        let written = self.file.write_all(bytes);
        if let Err(error) = written {
            // Earlier bytes stay; a piece that was written by half is cut off.
            let _ = self.file.set_len(self.length);
            return Err(full(error, &path));
        }
        self.hash.0.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// The whole file is there: it gets its name. Its SHA-256.
    ///
    /// # Errors
    /// The hash is another one: then nothing of it stays. Or the system's.
    pub fn finish(self, what: &str) -> Result<String, HubError> {
        let (path, side) = paths(&self.target);
        let got = self.hash.0.finish();
        if let Some(expected) = self.whole.sha256.filter(|expected| *expected != got) {
            let _ = (fs::remove_file(&path), fs::remove_file(&side));
            return Err(HubError::Hash { what: what.to_string(), got, expected });
        }
        self.file.sync_all().map_err(|error| full(error, &path))?;
        fs::rename(&path, &self.target).map_err(HubError::io("rename", &path))?;
        let _ = fs::remove_file(&side);
        if let Some(folder) = self.target.parent().and_then(|folder| File::open(folder).ok()) {
            // The name is on disk then too; where the system has no such call, it will be soon.
            let _ = folder.sync_all();
        }
        Ok(got)
    }

    /// Deletes the part.
    pub fn discard(self) {
        let (path, side) = paths(&self.target);
        let _ = (fs::remove_file(path), fs::remove_file(side));
    }
}

/// The ending of parts of files.
pub const PART: &str = ".part";
/// The ending of what is noted about a part.
pub const NOTE: &str = ".part.json";

/// Names of a part and of what stands beside it.
pub fn paths(target: &Path) -> (PathBuf, PathBuf) {
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    (target.with_file_name(format!("{name}{PART}")), target.with_file_name(format!("{name}{NOTE}")))
}

/// Bytes that are there of a target, complete or not.
pub fn bytes_of(target: &Path) -> u64 {
    let length = |path: &Path| fs::metadata(path).map_or(0, |meta| meta.len());
    length(target).max(length(&paths(target).0))
}

/// A disk that is full says what helps.
fn full(error: std::io::Error, path: &Path) -> HubError {
    use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded | FileTooLarge => HubError::NoRoom {
            folder: path.parent().unwrap_or(path).to_path_buf(),
            name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            free: free_in(path.parent().unwrap_or(path)).unwrap_or(0),
            needed: 1,
        },
        _ => HubError::io("write", path)(error),
    }
}

/// Bytes that are free on the disk of a folder, or of the nearest one above it that exists.
pub fn free_in(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|folder| folder.exists())?;
    let stat = rustix::fs::statvfs(there).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
mod tests {
    use super::*;
    use crate::hash::of_text;

    #[test]
    fn a_part_goes_on_only_as_the_same_file() {
        let dir = std::env::temp_dir().join(format!("brigade-part-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let target = dir.join("x.gguf");
        let whole = |sha: &str| Whole { size: 6, sha256: Some(of_text(sha)), etag: None };
        let mut part = PartFile::open(&target, whole("abcdef")).unwrap();
        part.begin_anew(Some("\"e\"".to_string())).unwrap();
        part.write(b"abc").unwrap();
        drop(part);
        let mut part = PartFile::open(&target, whole("abcdef")).unwrap();
        assert_eq!((part.length, part.whole.etag.as_deref()), (3, Some("\"e\"")));
        part.write(b"def").unwrap();
        assert_eq!(part.finish("x").unwrap(), of_text("abcdef"));
        assert_eq!(fs::read(&target).unwrap(), b"abcdef");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        // A different file under the same name begins at its start, and one that fails verification leaves nothing.
        fs::remove_file(&target).unwrap();
        let mut part = PartFile::open(&target, whole("one")).unwrap();
        part.write(b"abc").unwrap();
        drop(part);
        let mut part = PartFile::open(&target, whole("two")).unwrap();
        assert_eq!(part.length, 0);
        part.write(b"xxxxxx").unwrap();
        assert!(matches!(part.finish("x"), Err(HubError::Hash { .. })));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_full_disk_says_what_helps() {
        let error =
            full(std::io::Error::from_raw_os_error(28), Path::new("/d/x.gguf.part")).to_string();
        assert!(error.contains("brigade prune") && error.contains("--download-dir"), "{error}");
    }
}

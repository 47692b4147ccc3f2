//! Files that only their owner may read, written whole or not at all.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use super::TlsError;

/// Permissions of secret files: for the owner only.
const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_DIR: u32 = 0o700;
/// Limit of a file's bytes.
const MAX_BYTES: u64 = 4 << 20;
/// The pause between two attempts to take a lock.
const LOCK_LOOK: Duration = Duration::from_millis(20);

fn failed(path: &Path) -> impl FnOnce(io::Error) -> TlsError + '_ {
    move |source| TlsError::File { path: path.to_owned(), source }
}

/// Makes a folder, and those above it, for its owner alone.
///
/// # Errors
/// [`TlsError::File`].
pub fn make_dir(path: &Path) -> Result<(), TlsError> {
    DirBuilder::new().recursive(true).mode(PRIVATE_DIR).create(path).map_err(failed(path))
}

/// Writes a file for its owner alone. A reader sees either the old file or all of the new one.
///
/// # Errors
/// [`TlsError::File`].
pub fn write(path: &Path, text: &str) -> Result<(), TlsError> {
    let mut part = path.as_os_str().to_owned();
    part.push(".new");
    let part = Path::new(&part);
    let written = (|| {
        // A file that an earlier attempt left has unknown permissions.
        match fs::remove_file(part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(PRIVATE_FILE).open(part)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(part, path)
    })();
    written.map_err(failed(path))
}

/// The text of a file; `None` where there is none.
///
/// # Errors
/// [`TlsError::File`]; [`TlsError::Malformed`] for one that is too long.
pub fn read(path: &Path) -> Result<Option<String>, TlsError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(path)(error)),
    };
    let mut text = String::new();
    let n = file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed(path))?;
    if n as u64 > MAX_BYTES {
        let problem =
            format!("it has more than {MAX_BYTES} bytes: this is not a file of brigade's");
        return Err(TlsError::malformed(path.display().to_string(), problem));
    }
    Ok(Some(text))
}

/// The same as [`read`], for a file that must exist.
///
/// # Errors
/// As [`read`]; [`TlsError::File`] where the file does not exist.
pub fn require(path: &Path) -> Result<String, TlsError> {
    let missing = || failed(path)(io::ErrorKind::NotFound.into());
    read(path)?.ok_or_else(missing)
}

/// A lock on a folder, between processes. It ends with this value, or with the process.
#[derive(Debug)]
pub struct Lock {
    /// Open as long as the lock is held.
    _file: File,
}

impl Lock {
    /// Waits for the lock `path` for at most `patience`; `None` where another process keeps it.
    ///
    /// # Errors
    /// [`TlsError::File`].
    pub fn take(path: &Path, patience: Duration) -> Result<Option<Self>, TlsError> {
        let open = OpenOptions::new().create(true).append(true).mode(PRIVATE_FILE).open(path);
        let (file, begin) = (open.map_err(failed(path))?, Instant::now());
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Some(Self { _file: file })),
                Err(rustix::io::Errno::WOULDBLOCK) if begin.elapsed() < patience => {
                    std::thread::sleep(LOCK_LOOK);
                }
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(failed(path)(error.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_or_refused() {
        let path = std::env::temp_dir().join(format!("brigade-long-{}.txt", std::process::id()));
        let read_one_of = |n_bytes: u64| {
            fs::write(&path, vec![b'x'; n_bytes as usize]).unwrap();
            read(&path)
        };
        assert_eq!(read_one_of(MAX_BYTES).unwrap().unwrap().len() as u64, MAX_BYTES);
        let refused = read_one_of(MAX_BYTES + 1).unwrap_err().to_string();
        fs::remove_file(&path).unwrap();
        assert!(refused.contains(&format!("more than {MAX_BYTES} bytes")), "{refused}");
    }
}

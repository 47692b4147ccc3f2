//! Writes rows of logits to a file while they arrive. The file gets its name only when it is complete, so that no
//! reader ever sees half of it. Its header is that of a `.npy` file, or one that the caller gives.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use brigade_gguf::npy;

/// Refuses to replace an existing file without `force`, and anything that is not a file.
///
/// # Errors
/// The file would be replaced.
pub fn refuse_overwrite(path: &Path, force: bool) -> Result<()> {
    let Ok(there) = std::fs::metadata(path) else { return Ok(()) };
    ensure!(there.is_file(), "{} is not a regular file: give another name", path.display());
    ensure!(force, "{} is there already: --force replaces it", path.display());
    Ok(())
}

/// The name under which a file is written until it is whole.
pub fn part_name(path: &Path) -> PathBuf {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    PathBuf::from(part)
}

/// A file of f32 `[n_rows, width]` under construction. It has its name only once it is whole.
#[derive(Debug)]
pub struct RowFile {
    out: BufWriter<File>,
    path: PathBuf,
    part: PathBuf,
    width: usize,
    left: usize,
}

impl RowFile {
    /// Starts a `.npy` file.
    ///
    /// # Errors
    /// The file system's.
    pub fn create(path: &Path, n_rows: usize, width: usize) -> Result<Self> {
        let header = |out: &mut BufWriter<File>| npy::write_header(out, &[n_rows, width]);
        Self::with_header(path, n_rows, width, header)
    }

    /// Starts a file that begins with what `header` writes.
    ///
    /// # Errors
    /// The file system's.
    pub fn with_header(
        path: &Path,
        n_rows: usize,
        width: usize,
        header: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<Self> {
        let part = part_name(path);
        let created = || format!("cannot write {}", part.display());
        let mut out = BufWriter::new(File::create(&part).with_context(created)?);
        header(&mut out).with_context(created)?;
        Ok(Self { out, path: path.to_owned(), part, width, left: n_rows })
    }

    /// Adds the next row.
    ///
    /// # Errors
    /// The file system's, or a row too many or of another width.
    pub fn row(&mut self, row: &[f32]) -> Result<()> {
        ensure!(row.len() == self.width, "a row has {} values, not {}", row.len(), self.width);
        ensure!(self.left > 0, "there are more rows than announced");
        self.left -= 1;
        for value in row {
            self.out.write_all(&value.to_le_bytes())?;
        }
        Ok(())
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The file system's, or missing rows.
    pub fn finish(mut self) -> Result<()> {
        ensure!(self.left == 0, "{} rows are missing", self.left);
        self.out.flush()?;
        let named = std::fs::rename(&self.part, &self.path);
        named.with_context(|| format!("cannot write {}", self.path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_read_back_as_written() {
        let path = std::env::temp_dir().join(format!("brigade-rows-{}.npy", std::process::id()));
        let mut file = RowFile::create(&path, 2, 3).unwrap();
        file.row(&[1.0, 2.0, 3.0]).unwrap();
        assert!(file.row(&[1.0]).is_err());
        file.row(&[4.0, 5.0, 6.0]).unwrap();
        assert!(!path.exists());
        file.finish().unwrap();
        let read = npy::read(&path).unwrap();
        assert_eq!(read.shape, [2, 3]);
        assert_eq!(read.data, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        std::fs::remove_file(path).unwrap();
    }
}

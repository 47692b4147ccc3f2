//! The file of logits that `brigade perplexity` saves, and compares another run with.
//!
//! It is little-endian. First come a magic number, and `n_vocab`, `n_ctx` and the number of chunks as u32.
//! Then come all tokens of all chunks as u32, then an f32 row of logits for each scored token. The tokens are
//! there so that runs over different texts are never compared.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::cli::printing::npy::RowFile;

const MAGIC: [u8; 8] = *b"brglogi1";
/// Bytes of magic and numbers.
const HEAD_BYTES: u64 = 8 + 3 * 4;

/// The tokens that are scored, and their chunks.
#[derive(Debug)]
pub(super) struct Scored {
    pub(super) n_vocab: u32,
    /// Tokens of each chunk.
    pub(super) n_ctx: u32,
    pub(super) chunks: Vec<Vec<u32>>,
}

impl Scored {
    /// Whether the row at `pos` is: that of a token in the second half of its chunk, but the last.
    pub(super) fn is_scored(&self, pos: u32) -> bool {
        (self.n_ctx / 2..self.n_ctx - 1).contains(&pos)
    }

    fn n_rows(&self) -> usize {
        self.chunks.len() * (self.n_ctx - 1 - self.n_ctx / 2) as usize
    }

    /// Writes everything before the rows.
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&MAGIC)?;
        for value in [self.n_vocab, self.n_ctx, self.chunks.len() as u32] {
            out.write_all(&value.to_le_bytes())?;
        }
        for token in self.chunks.iter().flatten() {
            out.write_all(&token.to_le_bytes())?;
        }
        Ok(())
    }

    fn file_bytes(&self) -> u64 {
        let tokens = self.chunks.len() as u64 * u64::from(self.n_ctx);
        HEAD_BYTES + tokens * 4 + self.n_rows() as u64 * u64::from(self.n_vocab) * 4
    }
}

/// Starts a file for the logits of all scored tokens.
///
/// # Errors
/// The file system's.
pub(super) fn create(path: &Path, scored: &Scored) -> Result<RowFile> {
    let header = |out: &mut BufWriter<File>| scored.write(out);
    RowFile::with_header(path, scored.n_rows(), scored.n_vocab as usize, header)
}

/// Saved logits, read row by row.
#[derive(Debug)]
pub(super) struct Base {
    file: BufReader<File>,
    bytes: Vec<u8>,
    row: Vec<f32>,
}

impl Base {
    /// Opens a saved file for the same text, vocabulary and chunk length.
    ///
    /// # Errors
    /// The file cannot be read, is of another kind, or is of another vocabulary, text or chunk length.
    pub(super) fn open(path: &Path, scored: &Scored) -> Result<Self> {
        let checked = || {
            let mut file = File::open(path)?;
            check(&mut file, scored)?;
            anyhow::Ok(file)
        };
        let file = checked().with_context(|| format!("--base {}", path.display()))?;
        let width = scored.n_vocab as usize;
        let (bytes, row) = (vec![0; width * 4], vec![0.0; width]);
        Ok(Self { file: BufReader::new(file), bytes, row })
    }

    /// The next row, `[n_vocab]`.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn row(&mut self) -> Result<&[f32]> {
        self.file.read_exact(&mut self.bytes).context("--base")?;
        for (value, bytes) in self.row.iter_mut().zip(self.bytes.as_chunks().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(&self.row)
    }
}

/// Compares all that comes before the rows, and the length; leaves `file` at the first row.
fn check(file: &mut File, scored: &Scored) -> Result<()> {
    let mut expected = Vec::new();
    scored.write(&mut expected)?;
    let mut found = Vec::new();
    file.take(expected.len() as u64).read_to_end(&mut found)?;
    ensure!(found.starts_with(&MAGIC), "not a file that --save-logits wrote");
    let fields = ["tokens in the vocabulary", "tokens in a chunk (--ctx)", "chunks"];
    let number = |bytes: &[u8], i: usize| {
        let bytes = bytes.get(MAGIC.len() + i * 4..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    };
    for (i, field) in fields.iter().enumerate() {
        let (theirs, ours) = (number(&found, i), number(&expected, i));
        let theirs = theirs.context("the file ends in its header")?;
        ensure!(Some(theirs) == ours, "{theirs} {field}, and {} now", ours.unwrap_or_default());
    }
    ensure!(found == expected, "it was saved from another text, or with another tokenizer");
    let (length, whole) = (file.metadata()?.len(), scored.file_bytes());
    ensure!(length == whole, "{length} bytes, and {whole} are needed");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored() -> Scored {
        Scored { n_vocab: 3, n_ctx: 4, chunks: vec![vec![0, 1, 2, 0], vec![2, 2, 1, 0]] }
    }

    fn refused(path: &Path, scored: &Scored) -> String {
        format!("{:#}", Base::open(path, scored).expect_err("it is another"))
    }

    #[test]
    fn rows_come_back_and_only_for_the_same_text() {
        let path = std::env::temp_dir().join(format!("brigade-base-{}", std::process::id()));
        let all = scored();
        assert_eq!((0..4).filter(|&pos| all.is_scored(pos)).collect::<Vec<_>>(), [2]);
        let mut file = create(&path, &all).unwrap();
        file.row(&[1.0, 2.0, 3.0]).unwrap();
        file.row(&[4.0, 5.0, 6.0]).unwrap();
        file.finish().unwrap();
        let mut base = Base::open(&path, &all).unwrap();
        assert_eq!(base.row().unwrap(), [1.0, 2.0, 3.0]);
        assert_eq!(base.row().unwrap(), [4.0, 5.0, 6.0]);
        assert!(base.row().is_err());

        let mut other = scored();
        other.chunks[1][0] = 1;
        assert!(refused(&path, &other).contains("another text"));
        assert!(refused(&path, &Scored { n_vocab: 4, ..scored() }).contains("vocabulary"));
        assert!(refused(&path, &Scored { n_ctx: 5, ..scored() }).contains("--ctx"));
        other.chunks.pop();
        assert!(refused(&path, &other).contains("2 chunks, and 1 now"));

        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len() as u64, all.file_bytes());
        for n in 0..bytes.len() {
            std::fs::write(&path, &bytes[..n]).unwrap();
            assert!(Base::open(&path, &all).is_err(), "the first {n} bytes");
        }
        std::fs::write(&path, [&bytes[..], &[0]].concat()).unwrap();
        assert!(refused(&path, &all).contains("bytes"));
        std::fs::remove_file(path).unwrap();
    }
}

//! SHA-256, by which hubs and registries name files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use ring::digest::{Context, SHA256};

/// Bytes that are hashed at once.
const PIECE: usize = 1 << 20;

/// A hash in the making.
#[derive(Clone)]
pub struct Sha256(Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Sha256 {
    /// Adds bytes to the hash.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash as 64 hex digits.
    pub fn finish(self) -> String {
        self.0.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The hash of all that a file has from its start; how many bytes that was.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_start(mut file: &File) -> io::Result<(Self, u64)> {
        let (mut hash, mut piece, mut length) = (Self::default(), vec![0; PIECE], 0);
        loop {
            match file.read(&mut piece)? {
                0 => return Ok((hash, length)),
                n => {
                    hash.update(&piece[..n]);
                    length += n as u64;
                }
            }
        }
    }
}

/// The SHA-256 of a file.
///
/// # Errors
/// The file cannot be read.
pub fn of_file(path: &Path) -> io::Result<String> {
    Ok(Sha256::of_start(&File::open(path)?)?.0.finish())
}

/// Whether this is how a SHA-256 is written: 64 hex digits in lower case.
pub fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// The SHA-256 of a text.
pub fn of_text(text: &str) -> String {
    let mut hash = Sha256::default();
    hash.update(text.as_bytes());
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_written_as_hubs_write_them() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(of_text(""), empty);
        assert!(is_sha256(empty) && !is_sha256(&empty.to_uppercase()) && !is_sha256("e3"));
    }
}

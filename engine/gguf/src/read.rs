//! A file's header, read into memory: what is done with it later does not depend on the file any more.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::bytes::Bytes;
use super::error::GgufError;
use super::header::MAX_HEADER_BYTES;
use super::parse;

/// Bytes read at first for a header; most are within a few of them.
const FIRST_READ: u64 = 1 << 20;
/// Factor by which the next read is longer when the bytes were not enough.
const READ_MORE: u64 = 8;

/// Opens a file and reads its header.
pub fn open_header(path: &Path) -> Result<(File, Bytes), GgufError> {
    let io = |source| GgufError::io(path, source);
    // Looked at before it is opened: opening a pipe waits for its writer.
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(io(io::Error::other("not a regular file")));
    }
    let mut file = File::open(path).map_err(io)?;
    let file_len = file.metadata().map_err(io)?.len();
    let bytes = read_header(&mut file, file_len, path)?;
    Ok((file, Bytes::Owned(bytes.into())))
}

/// The bytes of the header alone, read in growing steps until they parse.
fn read_header(file: &mut File, file_len: u64, path: &Path) -> Result<Vec<u8>, GgufError> {
    let name = path.display().to_string();
    let most = file_len.min(MAX_HEADER_BYTES);
    let mut wanted = FIRST_READ.min(most);
    let mut bytes = Vec::new();
    loop {
        let have = bytes.len();
        bytes.resize(wanted as usize, 0);
        file.read_exact(&mut bytes[have..]).map_err(|source| cut_off(path, wanted, source))?;
        match parse::parse_header(&bytes, &name) {
            Ok(header) => {
                bytes.truncate(header.len);
                return Ok(bytes);
            }
            Err(error) if wanted == most || !bytes.starts_with(&parse::MAGIC) => return Err(error),
            Err(_) => wanted = wanted.saturating_mul(READ_MORE).min(most),
        }
    }
}

/// Error of a read up to byte `end`. A file that ends before that was cut off.
pub fn cut_off(path: &Path, end: u64, source: io::Error) -> GgufError {
    match source.kind() {
        io::ErrorKind::UnexpectedEof => {
            let problem = format!("it ends before byte {end}, which it had when it was opened");
            GgufError::Changed { path: path.to_owned(), problem }
        }
        _ => GgufError::io(path, source),
    }
}

//! NumPy's `.npy` files of f32: logits for people, and expected values for tests.
//!
//! It reads and writes version 1.0, little-endian f32, C order. Everything else is refused by name.

use std::io::{self, Read, Write};
use std::path::Path;

const MAGIC: &[u8; 8] = b"\x93NUMPY\x01\x00";
/// Headers are padded so that the data start at a multiple of this.
const ALIGNMENT: usize = 64;
/// Most values accepted in a file: 64 GiB of them.
const MAX_VALUES: usize = 1 << 34;

/// An array in C order.
#[derive(Clone, Debug, PartialEq)]
pub struct Npy {
    /// Sizes, the slowest-varying dimension first.
    pub shape: Vec<usize>,
    /// Values in row-major order.
    pub data: Vec<f32>,
}

/// Writes the header of an f32 array; its values follow as little-endian bytes, in any number of writes.
///
/// # Errors
/// The writer's.
pub fn write_header(out: &mut impl Write, shape: &[usize]) -> io::Result<()> {
    let dims: String = shape.iter().map(|n| format!("{n}, ")).collect();
    let mut header =
        format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}), }}", dims.trim_end());
    // One newline ends the header, which starts after magic (8) and its length (2).
    let unpadded = MAGIC.len() + 2 + header.len() + 1;
    header.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(ALIGNMENT) - unpadded));
    header.push('\n');
    let len =
        u16::try_from(header.len()).map_err(|_| io::Error::other("npy: too many dimensions"))?;
    out.write_all(MAGIC)?;
    out.write_all(&len.to_le_bytes())?;
    out.write_all(header.as_bytes())
}

/// Writes an array to a file.
///
/// # Errors
/// The file's, and `InvalidInput` when `data` are not as many as `shape` says.
pub fn write(path: impl AsRef<Path>, shape: &[usize], data: &[f32]) -> io::Result<()> {
    if shape.iter().product::<usize>() != data.len() {
        let problem = format!("npy: {} values for shape {shape:?}", data.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let mut out = io::BufWriter::new(std::fs::File::create(path)?);
    write_header(&mut out, shape)?;
    out.write_all(bytemuck::cast_slice(data))?;
    out.flush()
}

/// Reads an f32 array from a file.
///
/// # Errors
/// The file's, and `InvalidData` that says what is not as expected.
pub fn read(path: impl AsRef<Path>) -> io::Result<Npy> {
    let mut file = io::BufReader::new(std::fs::File::open(path)?);
    let mut start = [0; 10];
    file.read_exact(&mut start)?;
    if start[..8] != *MAGIC {
        return Err(invalid("not a version 1.0 .npy file"));
    }
    let mut header = vec![0; usize::from(u16::from_le_bytes([start[8], start[9]]))];
    file.read_exact(&mut header)?;
    let header = String::from_utf8(header).map_err(|_| invalid("header is not text"))?;
    let shape = parse_header(&header)?;
    let count = shape.iter().try_fold(1_usize, |n, dim| n.checked_mul(*dim));
    let count = count.filter(|n| *n <= MAX_VALUES).ok_or_else(|| invalid("shape is too large"))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    if bytes.len() != count * 4 {
        return Err(invalid(&format!("{} bytes of data for shape {shape:?}", bytes.len())));
    }
    let data =
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    Ok(Npy { shape, data })
}

fn invalid(problem: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("npy: {problem}"))
}

fn parse_header(header: &str) -> io::Result<Vec<usize>> {
    if !header.contains("'descr': '<f4'") {
        return Err(invalid("elements are not little-endian f32"));
    }
    if !header.contains("'fortran_order': False") {
        return Err(invalid("not in C order"));
    }
    let shape = header.split_once("'shape': (").and_then(|(_, rest)| rest.split_once(')'));
    let (shape, _) = shape.ok_or_else(|| invalid("no shape"))?;
    let dims = shape.split(',').map(str::trim).filter(|dim| !dim.is_empty());
    dims.map(|dim| dim.parse().map_err(|_| invalid("shape is not a tuple of sizes"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_of_every_rank() {
        let dir = std::env::temp_dir();
        for shape in [vec![], vec![0], vec![3], vec![2, 5], vec![2, 3, 4]] {
            let n = shape.iter().product::<usize>();
            let data: Vec<f32> = (0..n).map(|i| i as f32 * 0.5 - 1.0).collect();
            let path = dir.join(format!("brigade-npy-{}-{}.npy", std::process::id(), shape.len()));
            write(&path, &shape, &data).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!((bytes.len() - n * 4) % ALIGNMENT, 0);
            assert_eq!(read(&path).unwrap(), Npy { shape, data });
            std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
            assert!(read(&path).is_err() || n == 0);
            std::fs::remove_file(&path).unwrap();
        }
    }

    #[test]
    fn other_kinds_are_refused_by_name() {
        for (header, why) in [
            ("{'descr': '<f8', 'fortran_order': False, 'shape': (1,), }", "f32"),
            ("{'descr': '<f4', 'fortran_order': True, 'shape': (1,), }", "C order"),
            ("{'descr': '<f4', 'fortran_order': False, 'shape': (x,), }", "tuple"),
            ("{'descr': '<f4', 'fortran_order': False, }", "no shape"),
        ] {
            assert!(parse_header(header).unwrap_err().to_string().contains(why), "{header}");
        }
    }
}

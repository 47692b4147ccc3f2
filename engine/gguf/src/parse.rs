//! Parses the bytes of a header into metadata entries and a raw tensor directory.
//!
//! Every count and length is checked against a named cap, and against the bytes that are left, before
//! anything is allocated or skipped. Offsets of tensors are checked in [`super::directory`].

use super::cursor::Cursor;
use super::error::GgufError;
use super::meta::{Entry, EntryKind};
use super::number::Number;
use super::value::{Value, ValueType};
use brigade_quant::GgmlType;
use std::collections::HashSet;

/// Most metadata keys accepted; models have tens.
pub const MAX_KEYS: u64 = 1 << 16;
/// Longest metadata key accepted, the format's own limit.
pub const MAX_KEY_BYTES: u64 = (1 << 16) - 1;
/// Longest metadata array accepted; the longest in use, merges and tokens, are below 2^20.
pub const MAX_ARRAY_LEN: u64 = 1 << 28;
/// Most tensors accepted in one file; the largest models have some tens of thousands.
pub const MAX_TENSORS: u64 = 1 << 20;
/// Most dimensions of a tensor.
pub const MAX_DIMS: usize = 4;
/// Longest tensor name accepted: llama.cpp keeps names in 64 bytes, the last one zero.
pub const MAX_TENSOR_NAME: u64 = 63;
/// Alignment of tensor data unless `general.alignment` says otherwise.
pub const DEFAULT_ALIGNMENT: u32 = 32;
/// Largest alignment accepted; a page of the largest common size.
pub const MAX_ALIGNMENT: u32 = 1 << 21;

pub(super) const MAGIC: [u8; 4] = *b"GGUF";
pub(super) const ALIGNMENT_KEY: &str = "general.alignment";
const MIN_VERSION: u32 = 2;
const MAX_VERSION: u32 = 3;
/// Smallest metadata entry: key length, one key byte, type, one value byte.
const MIN_ENTRY_BYTES: usize = 8 + 1 + 4 + 1;
/// Smallest directory entry: name length, one name byte, n_dims, type, offset.
const MIN_TENSOR_BYTES: usize = 8 + 1 + 4 + 4 + 8;

/// A parsed header: nothing in it points outside the bytes it was parsed from.
pub(super) struct Header {
    pub entries: Vec<Entry>,
    pub tensors: Vec<RawTensor>,
    pub alignment: u32,
    /// Bytes of the header without the padding that follows it.
    pub len: usize,
}

/// One entry of the tensor directory as it stands in the file.
pub(super) struct RawTensor {
    pub name: String,
    pub ty: GgmlType,
    pub n_dims: usize,
    pub ne: [usize; MAX_DIMS],
    pub nbytes: u64,
    /// Relative to the start of the data section.
    pub offset: u64,
}

/// Parses the header at the start of `bytes`. `file` is for messages.
pub(super) fn parse_header(bytes: &[u8], file: &str) -> Result<Header, GgufError> {
    let mut c = Cursor::new(bytes, file);
    check_magic_and_version(&mut c, file)?;
    let n_tensors = count(&mut c, "tensor count", MAX_TENSORS)?;
    let n_keys = count(&mut c, "metadata key count", MAX_KEYS)?;

    let mut entries = Vec::with_capacity(n_keys.min(c.remaining() / MIN_ENTRY_BYTES));
    let mut seen = HashSet::new();
    for i in 0..n_keys {
        let entry = parse_entry(&mut c, i)?;
        if !seen.insert(entry.key.clone()) {
            return Err(
                c.bad(format_args!("metadata key {i}"), format!("{} appears twice", entry.key))
            );
        }
        entries.push(entry);
    }
    let alignment = alignment(&c, bytes, &entries)?;

    let mut tensors = Vec::with_capacity(n_tensors.min(c.remaining() / MIN_TENSOR_BYTES));
    let mut seen = HashSet::new();
    for i in 0..n_tensors {
        let tensor = parse_tensor(&mut c, i)?;
        if !seen.insert(tensor.name.clone()) {
            return Err(c.bad(format_args!("tensor {i}"), format!("{} appears twice", tensor.name)));
        }
        tensors.push(tensor);
    }
    Ok(Header { entries, tensors, alignment, len: c.pos() })
}

fn check_magic_and_version(c: &mut Cursor<'_>, file: &str) -> Result<(), GgufError> {
    let magic = c.take(4, format_args!("magic"))?;
    if magic != MAGIC {
        let problem =
            format!("found {:?}, a GGUF file starts with \"GGUF\"", String::from_utf8_lossy(magic));
        return Err(c.bad(format_args!("magic"), problem));
    }
    let version = c.u32(format_args!("version"))?;
    let problem = if (MIN_VERSION..=MAX_VERSION).contains(&version) {
        return Ok(());
    } else if version != 0 && version & 0xffff == 0 {
        "a big-endian file: convert it to little-endian".to_owned()
    } else {
        format!(
            "GGUF version {version}, this reader knows {MIN_VERSION} to {MAX_VERSION}: convert the model again"
        )
    };
    Err(GgufError::Unsupported { file: file.to_owned(), problem })
}

fn count(c: &mut Cursor<'_>, field: &str, limit: u64) -> Result<usize, GgufError> {
    let n = c.u64(format_args!("{field}"))?;
    if n > limit {
        return Err(c.bad(format_args!("{field}"), format!("{n}, the limit is {limit}")));
    }
    usize::try_from(n)
        .map_err(|_| c.bad(format_args!("{field}"), format!("{n} does not fit this machine")))
}

fn parse_entry(c: &mut Cursor<'_>, i: usize) -> Result<Entry, GgufError> {
    let field = format_args!("metadata key {i}");
    let key = c.string(field)?;
    let key = match std::str::from_utf8(key) {
        _ if key.len() as u64 > MAX_KEY_BYTES => {
            return Err(
                c.bad(field, format!("{} bytes long, the limit is {MAX_KEY_BYTES}", key.len()))
            );
        }
        Ok("") => return Err(c.bad(field, "is empty")),
        Ok(key) => key.to_owned(),
        Err(_) => return Err(c.bad(field, "is not UTF-8")),
    };
    let field = format_args!("metadata value of {key}");
    let ty = value_type(c, field)?;
    if ty == ValueType::Array {
        return parse_array(c, key);
    }
    let value = match ty.fixed_size() {
        Some(size) => c.take(size as u64, field)?,
        None => c.string(field)?,
    };
    check_bools(c, field, ty, value)?;
    let range = c.pos() - value.len()..c.pos();
    Ok(Entry { key, kind: EntryKind::Scalar(ty), range })
}

fn parse_array(c: &mut Cursor<'_>, key: String) -> Result<Entry, GgufError> {
    let field = format_args!("metadata array {key}");
    let elem = value_type(c, field)?;
    let len = c.u64(field)?;
    if len > MAX_ARRAY_LEN {
        return Err(c.bad(field, format!("{len} elements, the limit is {MAX_ARRAY_LEN}")));
    }
    let start = c.pos();
    match elem.fixed_size() {
        // No overflow: `len` is at most 2^28 and a scalar at most 8 bytes.
        Some(size) => {
            let value = c.take(len * size as u64, field)?;
            check_bools(c, field, elem, value)?;
        }
        None if elem == ValueType::Array => return Err(c.bad(field, "is an array of arrays")),
        None => {
            for i in 0..len {
                c.string(format_args!("metadata array {key}[{i}]"))?;
            }
        }
    }
    let len = usize::try_from(len).map_err(|_| c.bad(field, "does not fit this machine"))?;
    Ok(Entry { key, kind: EntryKind::Array(elem, len), range: start..c.pos() })
}

fn value_type(c: &mut Cursor<'_>, field: std::fmt::Arguments<'_>) -> Result<ValueType, GgufError> {
    let id = c.u32(field)?;
    ValueType::from_id(id).ok_or_else(|| c.bad(field, format!("has unknown type id {id}")))
}

fn check_bools(
    c: &Cursor<'_>,
    field: std::fmt::Arguments<'_>,
    ty: ValueType,
    bytes: &[u8],
) -> Result<(), GgufError> {
    let strange = if ty == ValueType::Bool { bytes.iter().find(|b| **b > 1) } else { None };
    match strange {
        Some(byte) => {
            Err(c.bad(field, format!("is a bool with byte {byte}, only 0 and 1 are bools")))
        }
        None => Ok(()),
    }
}

fn alignment(c: &Cursor<'_>, bytes: &[u8], entries: &[Entry]) -> Result<u32, GgufError> {
    let Some(entry) = entries.iter().find(|e| e.key == ALIGNMENT_KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let field = format_args!("{ALIGNMENT_KEY}");
    let EntryKind::Scalar(ty) = entry.kind else {
        return Err(c.bad(field, "must be a u32"));
    };
    let number = Value::decode(ty, &bytes[entry.range.clone()]).and_then(|value| value.number());
    let Some(alignment) = number.and_then(Number::whole::<u32>) else {
        return Err(c.bad(field, "must be a u32"));
    };
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        let problem = format!("is {alignment}, must be a power of two up to {MAX_ALIGNMENT}");
        return Err(c.bad(field, problem));
    }
    Ok(alignment)
}

fn parse_tensor(c: &mut Cursor<'_>, i: usize) -> Result<RawTensor, GgufError> {
    let field = format_args!("tensor {i} name");
    let name = c.string(field)?;
    let name = match std::str::from_utf8(name) {
        _ if name.len() as u64 > MAX_TENSOR_NAME => {
            return Err(
                c.bad(field, format!("{} bytes long, the limit is {MAX_TENSOR_NAME}", name.len()))
            );
        }
        Ok("") => return Err(c.bad(field, "is empty")),
        Ok(name) => name.to_owned(),
        Err(_) => return Err(c.bad(field, "is not UTF-8")),
    };
    let field = format_args!("tensor {i} ({name}) dimensions");
    let n_dims = c.u32(field)? as usize;
    if n_dims > MAX_DIMS {
        return Err(c.bad(field, format!("{n_dims} of them, the limit is {MAX_DIMS}")));
    }
    let mut ne = [1; MAX_DIMS];
    for (j, n) in ne.iter_mut().enumerate().take(n_dims) {
        let dim = c.u64(field)?;
        *n = usize::try_from(dim)
            .ok()
            .filter(|n| *n > 0 && *n <= i64::MAX as usize)
            .ok_or_else(|| c.bad(field, format!("dimension {j} is {}", dim.cast_signed())))?;
    }
    let id = c.u32(format_args!("tensor {i} ({name}) type"))?;
    let ty = GgmlType::from_id(id).ok_or_else(|| {
        c.bad(format_args!("tensor {i} ({name}) type"), format!("unknown or removed id {id}"))
    })?;
    let nbytes = tensor_bytes(ty, &ne).map_err(|problem| c.bad(field, problem))?;
    let offset = c.u64(format_args!("tensor {i} ({name}) offset"))?;
    Ok(RawTensor { name, ty, n_dims, ne, nbytes, offset })
}

/// Bytes of a contiguous tensor, or what is wrong with its shape.
pub(super) fn tensor_bytes(ty: GgmlType, ne: &[usize; MAX_DIMS]) -> Result<u64, String> {
    if !ne[0].is_multiple_of(ty.block_elems()) {
        return Err(format!(
            "rows of {} elements are not whole {ty} blocks of {}",
            ne[0],
            ty.block_elems()
        ));
    }
    let too_large = || format!("{ne:?} of {ty} overflow");
    // The element count must fit an i64 too: others compute with it.
    let elems = ne.iter().try_fold(1_i64, |n, dim| n.checked_mul(i64::try_from(*dim).ok()?));
    let row = ty.row_bytes(ne[0]).ok_or_else(too_large)?;
    let bytes = ne[1..].iter().try_fold(row as u64, |n, dim| n.checked_mul(*dim as u64));
    elems.and(bytes).filter(|n| *n <= i64::MAX as u64).ok_or_else(too_large)
}

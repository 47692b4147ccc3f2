//! Writes GGUF version 3 files. Metadata and the list of tensors come first, then the tensors' data as a
//! stream.
//!
//! Tensors lie densely, in order, each padded to the alignment: llama.cpp accepts no other layout. The writer refuses
//! everything that a reader would refuse: names that are too long, duplicates, rows that are not whole blocks.

use super::directory::pad_up;
use super::error::GgufError;
use super::parse::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS, MAX_KEY_BYTES, MAX_TENSOR_NAME, tensor_bytes,
};
use super::value::{Value, ValueType};
use brigade_quant::GgmlType;
use std::collections::HashSet;
use std::io::{self, Write};

const VERSION: u32 = 3;

/// A value that can be stored under a metadata key.
pub trait MetaValue {
    /// Appends the type tag and the value.
    fn encode(&self, out: &mut Vec<u8>);
}

/// An element of a metadata array.
pub trait MetaElement {
    /// Type of such values in the file.
    const TYPE: ValueType;
    /// Appends the value without a tag.
    fn encode_element(&self, out: &mut Vec<u8>);
}

macro_rules! numbers {
    ($($number:ty => $ty:ident;)*) => {$(
        impl MetaElement for $number {
            const TYPE: ValueType = ValueType::$ty;
            fn encode_element(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

numbers! {
    u8 => U8; i8 => I8; u16 => U16; i16 => I16; u32 => U32; i32 => I32;
    u64 => U64; i64 => I64; f32 => F32; f64 => F64;
}

impl MetaElement for bool {
    const TYPE: ValueType = ValueType::Bool;
    fn encode_element(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl MetaElement for &[u8] {
    const TYPE: ValueType = ValueType::Str;
    fn encode_element(&self, out: &mut Vec<u8>) {
        put_string(out, self);
    }
}

impl MetaElement for str {
    const TYPE: ValueType = ValueType::Str;
    fn encode_element(&self, out: &mut Vec<u8>) {
        put_string(out, self.as_bytes());
    }
}

impl MetaElement for &str {
    const TYPE: ValueType = ValueType::Str;
    fn encode_element(&self, out: &mut Vec<u8>) {
        put_string(out, self.as_bytes());
    }
}

impl MetaElement for String {
    const TYPE: ValueType = ValueType::Str;
    fn encode_element(&self, out: &mut Vec<u8>) {
        put_string(out, self.as_bytes());
    }
}

impl<E: MetaElement + ?Sized> MetaValue for E {
    fn encode(&self, out: &mut Vec<u8>) {
        put_type(out, E::TYPE);
        self.encode_element(out);
    }
}

impl<E: MetaElement> MetaValue for [E] {
    fn encode(&self, out: &mut Vec<u8>) {
        put_type(out, ValueType::Array);
        put_type(out, E::TYPE);
        out.extend_from_slice(&(self.len() as u64).to_le_bytes());
        self.iter().for_each(|element| element.encode_element(out));
    }
}

/// Copies a value of another file.
impl MetaValue for Value<'_> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::U8(v) => v.encode(out),
            Self::I8(v) => v.encode(out),
            Self::U16(v) => v.encode(out),
            Self::I16(v) => v.encode(out),
            Self::U32(v) => v.encode(out),
            Self::I32(v) => v.encode(out),
            Self::F32(v) => v.encode(out),
            Self::Bool(v) => v.encode(out),
            Self::Str(v) => v.encode(out),
            Self::U64(v) => v.encode(out),
            Self::I64(v) => v.encode(out),
            Self::F64(v) => v.encode(out),
            Self::Array(array) => {
                put_type(out, ValueType::Array);
                put_type(out, array.elem());
                out.extend_from_slice(&(array.len() as u64).to_le_bytes());
                out.extend_from_slice(array.bytes());
            }
        }
    }
}

fn put_type(out: &mut Vec<u8>, ty: ValueType) {
    out.extend_from_slice(&u32::from(ty as u8).to_le_bytes());
}

fn put_string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// A header in the making.
pub struct GgufWriter {
    alignment: u32,
    keys: HashSet<String>,
    metadata: Vec<u8>,
    names: HashSet<String>,
    directory: Vec<u8>,
    sizes: Vec<u64>,
    end: u64,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// An empty file with the default alignment.
    pub fn new() -> Self {
        Self {
            alignment: DEFAULT_ALIGNMENT,
            keys: HashSet::new(),
            metadata: Vec::new(),
            names: HashSet::new(),
            directory: Vec::new(),
            sizes: Vec::new(),
            end: 0,
        }
    }

    /// An empty file that declares another alignment, a power of two.
    ///
    /// # Errors
    /// The alignment is not a power of two.
    pub fn with_alignment(alignment: u32) -> Result<Self, GgufError> {
        if !alignment.is_power_of_two() {
            return Err(GgufError::unwritable(
                ALIGNMENT_KEY,
                format!("{alignment} is no power of two"),
            ));
        }
        let mut writer = Self { alignment, ..Self::new() };
        writer.put(ALIGNMENT_KEY, &alignment)?;
        Ok(writer)
    }

    /// Adds a metadata key.
    ///
    /// # Errors
    /// The key is empty, too long or there already; or is the alignment, which
    /// [`GgufWriter::with_alignment`] sets.
    pub fn set(&mut self, key: &str, value: &(impl MetaValue + ?Sized)) -> Result<(), GgufError> {
        if key == ALIGNMENT_KEY {
            return Err(GgufError::unwritable(
                key,
                "the alignment is chosen when the writer is made",
            ));
        }
        self.put(key, value)
    }

    fn put(&mut self, key: &str, value: &(impl MetaValue + ?Sized)) -> Result<(), GgufError> {
        if key.is_empty() || key.len() as u64 > MAX_KEY_BYTES {
            let problem = format!("{} bytes long, must be 1 to {MAX_KEY_BYTES}", key.len());
            return Err(GgufError::unwritable(format_args!("key {key:?}"), problem));
        }
        if !self.keys.insert(key.to_owned()) {
            return Err(GgufError::unwritable(format_args!("key {key}"), "it is there already"));
        }
        put_string(&mut self.metadata, key.as_bytes());
        value.encode(&mut self.metadata);
        Ok(())
    }

    /// Plans the next tensor; `ne` are its sizes, the fastest-varying first. Its data come in the
    /// same order after [`GgufWriter::start`].
    ///
    /// # Errors
    /// Name or shape are such as no reader accepts.
    pub fn tensor(&mut self, name: &str, ty: GgmlType, ne: &[usize]) -> Result<(), GgufError> {
        let bad = |problem: String| GgufError::unwritable(format_args!("tensor {name:?}"), problem);
        if name.is_empty() || name.len() as u64 > MAX_TENSOR_NAME {
            return Err(bad(format!(
                "name of {} bytes, must be 1 to {MAX_TENSOR_NAME}",
                name.len()
            )));
        }
        if ne.is_empty() || ne.len() > MAX_DIMS || ne.contains(&0) {
            return Err(bad(format!("dimensions {ne:?}, must be 1 to {MAX_DIMS} of them, none 0")));
        }
        let mut shape = [1; MAX_DIMS];
        shape[..ne.len()].copy_from_slice(ne);
        let nbytes = tensor_bytes(ty, &shape).map_err(bad)?;
        let too_large = || bad("all tensors together are too large".to_owned());
        let end = pad_up(nbytes, self.alignment)
            .and_then(|n| self.end.checked_add(n))
            .ok_or_else(too_large)?;
        if !self.names.insert(name.to_owned()) {
            return Err(bad("it is there already".to_owned()));
        }
        put_string(&mut self.directory, name.as_bytes());
        self.directory.extend_from_slice(&(ne.len() as u32).to_le_bytes());
        for n in ne {
            self.directory.extend_from_slice(&(*n as u64).to_le_bytes());
        }
        self.directory.extend_from_slice(&ty.id().to_le_bytes());
        self.directory.extend_from_slice(&self.end.to_le_bytes());
        self.sizes.push(nbytes);
        self.end = end;
        Ok(())
    }

    /// Bytes of all tensors' data, padding included.
    pub fn data_bytes(&self) -> u64 {
        self.end
    }

    /// Writes the header alone, unpadded: a file for [`Gguf::open_header_only`](super::Gguf::open_header_only).
    ///
    /// # Errors
    /// The writer's.
    pub fn write_header_only(&self, out: &mut impl Write) -> io::Result<()> {
        self.write_header(out).map(|_| ())
    }

    fn write_header(&self, out: &mut impl Write) -> io::Result<u64> {
        let mut start = MAGIC.to_vec();
        start.extend_from_slice(&VERSION.to_le_bytes());
        start.extend_from_slice(&(self.sizes.len() as u64).to_le_bytes());
        start.extend_from_slice(&(self.keys.len() as u64).to_le_bytes());
        for part in [&start, &self.metadata, &self.directory] {
            out.write_all(part)?;
        }
        Ok((start.len() + self.metadata.len() + self.directory.len()) as u64)
    }

    /// Writes the header and its padding; the data follow through the result.
    ///
    /// # Errors
    /// The writer's.
    pub fn start<W: Write>(self, mut out: W) -> io::Result<TensorStream<W>> {
        let len = self.write_header(&mut out)?;
        put_padding(&mut out, len, self.alignment)?;
        Ok(TensorStream { out, alignment: self.alignment, sizes: self.sizes, next: 0, written: 0 })
    }
}

fn put_padding(out: &mut impl Write, len: u64, alignment: u32) -> io::Result<()> {
    let padding = len.next_multiple_of(u64::from(alignment)) - len;
    io::copy(&mut io::Read::take(io::repeat(0), padding), out).map(|_| ())
}

/// Takes the data of the planned tensors, in order.
pub struct TensorStream<W: Write> {
    out: W,
    alignment: u32,
    sizes: Vec<u64>,
    next: usize,
    written: u64,
}

impl<W: Write> TensorStream<W> {
    /// Writes the next bytes of the current tensor; the one that completes it also pads.
    ///
    /// # Errors
    /// The writer's, and `InvalidInput` when the bytes go beyond the tensor.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = self.sizes.get(self.next).map_or(0, |size| size - self.written);
        if bytes.len() as u64 > left {
            let problem =
                format!("{} bytes for tensor {}, which takes {left} more", bytes.len(), self.next);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        if self.sizes.get(self.next) == Some(&self.written) {
            put_padding(&mut self.out, self.written, self.alignment)?;
            self.next += 1;
            self.written = 0;
        }
        Ok(())
    }

    /// Flushes and returns the writer.
    ///
    /// # Errors
    /// The writer's, and `InvalidInput` when data of some tensor are missing.
    pub fn finish(mut self) -> io::Result<W> {
        if self.next < self.sizes.len() {
            let problem =
                format!("data of tensor {} of {} are missing", self.next, self.sizes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

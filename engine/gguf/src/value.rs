//! Metadata values as views into the header. Scalars are copied; strings and arrays are not.

use super::number::Number;
use std::fmt;

/// The type tag of a metadata value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    Str = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Str,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this id in the file.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.get(usize::try_from(id).ok()?).copied()
    }

    /// Name of the type in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::Str => "str",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of one value; `None` for strings and arrays, whose size is in the data.
    pub(super) fn fixed_size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::Str | Self::Array => None,
        }
    }
}

/// A metadata value, borrowed from the header.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names are the types")]
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    /// Bytes of a string; usually, but not certainly, UTF-8.
    Str(&'a [u8]),
    Array(ArrayRef<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// The bytes of a scalar, which its type's [`ValueType::fixed_size`] has measured.
fn le<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

impl<'a> Value<'a> {
    /// Decodes `bytes`, exactly as long as a value of the scalar or string type `ty`.
    pub(super) fn decode(ty: ValueType, bytes: &'a [u8]) -> Option<Self> {
        Some(match ty {
            ValueType::U8 => Self::U8(u8::from_le_bytes(le(bytes))),
            ValueType::I8 => Self::I8(i8::from_le_bytes(le(bytes))),
            ValueType::U16 => Self::U16(u16::from_le_bytes(le(bytes))),
            ValueType::I16 => Self::I16(i16::from_le_bytes(le(bytes))),
            ValueType::U32 => Self::U32(u32::from_le_bytes(le(bytes))),
            ValueType::I32 => Self::I32(i32::from_le_bytes(le(bytes))),
            ValueType::F32 => Self::F32(f32::from_le_bytes(le(bytes))),
            ValueType::Bool => Self::Bool(bytes != [0]),
            ValueType::Str => Self::Str(bytes),
            ValueType::U64 => Self::U64(u64::from_le_bytes(le(bytes))),
            ValueType::I64 => Self::I64(i64::from_le_bytes(le(bytes))),
            ValueType::F64 => Self::F64(f64::from_le_bytes(le(bytes))),
            ValueType::Array => return None,
        })
    }

    /// The number that it is, of whatever type; `None` for flags, strings and arrays.
    pub fn number(&self) -> Option<Number> {
        Some(match *self {
            Self::U8(x) => Number::Whole(x.into()),
            Self::I8(x) => Number::Whole(x.into()),
            Self::U16(x) => Number::Whole(x.into()),
            Self::I16(x) => Number::Whole(x.into()),
            Self::U32(x) => Number::Whole(x.into()),
            Self::I32(x) => Number::Whole(x.into()),
            Self::U64(x) => Number::Whole(x.into()),
            Self::I64(x) => Number::Whole(x.into()),
            Self::F32(x) => Number::Real(x.into()),
            Self::F64(x) => Number::Real(x),
            Self::Bool(_) | Self::Str(_) | Self::Array(_) => return None,
        })
    }

    /// Type of the value in words, e.g. `u32` or `array of 3 str`. `u32` or `array of 3 str`.
    pub fn type_name(&self) -> String {
        let ty = match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
            Self::Array(array) => {
                return format!("array of {} {}", array.len(), array.elem().name());
            }
        };
        ty.name().to_owned()
    }
}

/// An array inside the header; its bytes were checked when the header was parsed.
#[derive(Clone, Copy, PartialEq)]
pub struct ArrayRef<'a> {
    elem: ValueType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> ArrayRef<'a> {
    /// `bytes` hold exactly `len` elements of `elem`, which is not an array: the parser has walked them.
    pub(super) fn new(elem: ValueType, len: usize, bytes: &'a [u8]) -> Self {
        Self { elem, len, bytes }
    }

    /// Type of the elements.
    pub fn elem(&self) -> ValueType {
        self.elem
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements' bytes as they lie in the file.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements in order.
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter { elem: self.elem, left: self.len, bytes: self.bytes }
    }
}

impl fmt::Debug for ArrayRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "array of {} {}", self.len, self.elem.name())
    }
}

/// Iterator over an [`ArrayRef`].
#[derive(Clone)]
pub struct ArrayIter<'a> {
    elem: ValueType,
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let size = match self.elem.fixed_size() {
            Some(size) => size,
            None => {
                let (len, rest) = self.bytes.split_first_chunk()?;
                self.bytes = rest;
                usize::try_from(u64::from_le_bytes(*len)).ok()?
            }
        };
        let (value, rest) = self.bytes.split_at_checked(size)?;
        self.bytes = rest;
        Value::decode(self.elem, value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ArrayIter<'_> {}

/// Array elements shown by `Display` before it says how many more there are.
const SHOWN_ELEMENTS: usize = 4;
/// Characters of a string shown by `Display` before it says how long it is.
const SHOWN_CHARS: usize = 60;

impl fmt::Display for Value<'_> {
    /// One line for people; long strings and arrays are cut and say so.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::U8(v) => write!(f, "{v}"),
            Self::I8(v) => write!(f, "{v}"),
            Self::U16(v) => write!(f, "{v}"),
            Self::I16(v) => write!(f, "{v}"),
            Self::U32(v) => write!(f, "{v}"),
            Self::I32(v) => write!(f, "{v}"),
            Self::F32(v) => write!(f, "{v}"),
            Self::Bool(v) => write!(f, "{v}"),
            Self::U64(v) => write!(f, "{v}"),
            Self::I64(v) => write!(f, "{v}"),
            Self::F64(v) => write!(f, "{v}"),
            Self::Str(bytes) => {
                let text = String::from_utf8_lossy(bytes);
                let shown: String = text.chars().take(SHOWN_CHARS).collect();
                write!(f, "{shown:?}")?;
                if shown.len() < text.len() {
                    write!(f, "… ({} bytes)", bytes.len())
                } else {
                    Ok(())
                }
            }
            Self::Array(array) => {
                f.write_str("[")?;
                for (i, value) in array.iter().take(SHOWN_ELEMENTS).enumerate() {
                    write!(f, "{}{value}", if i == 0 { "" } else { ", " })?;
                }
                match array.len().checked_sub(SHOWN_ELEMENTS) {
                    Some(more) if more > 0 => write!(f, ", … {more} more]"),
                    _ => f.write_str("]"),
                }
            }
        }
    }
}

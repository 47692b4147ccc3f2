//! Typed access to the metadata of a model.
//!
//! The format's specification asks readers to take a number of any type that holds it: a count may be stored as a u32,
//! a u64 or an f32. So every number is read as what it is ([`Number`](super::Number)), and never rounded to a whole one
//! or cut to a smaller type. A missing or mistyped key is an error that names the key, what was found and what is
//! wanted.

use super::bytes::Bytes;
use super::error::GgufError;
use super::number::Number;
use super::value::{ArrayRef, Value, ValueType};
use std::collections::HashMap;
use std::ops::Range;

/// Place of one key's value in the header.
pub(super) struct Entry {
    pub key: String,
    pub kind: EntryKind,
    pub range: Range<usize>,
}

/// Contents of an entry's range.
#[derive(Clone, Copy)]
pub(super) enum EntryKind {
    /// The value's bytes alone; for strings without the length.
    Scalar(ValueType),
    /// Elements one after the other: their type and number.
    Array(ValueType, usize),
}

/// The key-value section of a GGUF file.
pub struct Meta {
    bytes: Bytes,
    entries: Vec<Entry>,
    index: HashMap<String, usize>,
}

/// The types that metadata are read as, each with its optional and its required accessor.
macro_rules! accessors {
    ($($(#[$doc:meta])* $name:ident, $opt:ident, $wanted:literal, $out:ty, $convert:expr;)*) => {
        #[allow(clippy::needless_lifetimes, reason = "needed where the result borrows")]
        impl Meta {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// The key is missing or has another type.
                pub fn $name<'a>(&'a self, key: &str) -> Result<$out, GgufError> {
                    self.$opt(key)?.ok_or_else(|| missing(key, $wanted))
                }

                #[doc = concat!("As [`Meta::", stringify!($name), "`]; `None` when the key is missing.")]
                ///
                /// # Errors
                /// The key has another type.
                pub fn $opt<'a>(&'a self, key: &str) -> Result<Option<$out>, GgufError> {
                    let convert: fn(Value<'a>) -> Option<$out> = $convert;
                    let Some(value) = self.get(key) else { return Ok(None) };
                    convert(value).map(Some).ok_or_else(|| wrong_type(key, &value, $wanted))
                }
            )*
        }
    };
}

accessors! {
    /// A u16 (only split files use it).
    u16, opt_u16, "u16", u16, |v| v.number()?.whole();
    /// A value of type u32.
    u32, opt_u32, "u32", u32, |v| v.number()?.whole();
    /// A value of type i32.
    i32, opt_i32, "i32", i32, |v| v.number()?.whole();
    /// A value of type f32.
    f32, opt_f32, "f32", f32, |v| Some(v.number()?.real_f32());
    /// A bool, or a number that is 0 or 1.
    bool, opt_bool, "bool", bool, flag;
    /// A string's bytes, whether or not they are UTF-8.
    byte_str, opt_byte_str, "str", &'a [u8], |v| if let Value::Str(x) = v { Some(x) } else { None };
    /// A UTF-8 string without a copy.
    str, opt_str, "UTF-8 str", &'a str,
        |v| if let Value::Str(x) = v { std::str::from_utf8(x).ok() } else { None };
    /// An array of strings, without a copy: `byte_strs(key)?.collect::<Vec<_>>()`. Vocabularies
    /// may hold pieces that are not UTF-8.
    byte_strs, opt_byte_strs, "array of str", ByteStrs<'a>, |v| array(v, &[ValueType::Str]).map(ByteStrs);
    /// An array of f32.
    f32s, opt_f32s, "array of f32", Vec<f32>, |v| each(v, |x| Some(x.number()?.real_f32()));
    /// An array of i32; a u32 that is larger stands for the i32 of the same bits.
    i32s, opt_i32s, "array of i32 or u32", Vec<i32>, |v| each(v, |x| match x {
        Value::U32(x) => Some(x.cast_signed()),
        x => x.number()?.whole(),
    });
    /// An array of u32, or of bools; an i32 below 0 stands for the u32 of the same bits.
    u32s, opt_u32s, "array of u32, i32 or bool", Vec<u32>, |v| each(v, |x| match x {
        Value::I32(x) => Some(x.cast_unsigned()),
        Value::Bool(x) => Some(u32::from(x)),
        x => x.number()?.whole(),
    });
    /// An array of u64.
    u64s, opt_u64s, "array of u64", Vec<u64>, |v| each(v, |x| x.number()?.whole());
    /// An array of bool, or of numbers that are 0 or 1.
    bools, opt_bools, "array of bool", Vec<bool>, |v| each(v, flag);
    /// The bytes of an array of u8 or i8.
    raw_bytes, opt_raw_bytes, "array of u8 or i8", &'a [u8],
        |v| array(v, &[ValueType::U8, ValueType::I8]).map(|a| a.bytes());
}

impl Meta {
    /// `entries` lie inside `bytes` and were checked by the parser; keys are distinct.
    pub(super) fn new(bytes: Bytes, entries: Vec<Entry>) -> Self {
        let index = entries.iter().enumerate().map(|(i, e)| (e.key.clone(), i)).collect();
        Self { bytes, entries, index }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All keys with their values, in the file's order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, Value<'_>)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), self.value(entry)))
    }

    /// The value of `key`, whatever its type.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        Some(self.value(&self.entries[*self.index.get(key)?]))
    }

    fn value(&self, entry: &Entry) -> Value<'_> {
        let bytes = &self.bytes[entry.range.clone()];
        match entry.kind {
            EntryKind::Array(elem, len) => Value::Array(ArrayRef::new(elem, len, bytes)),
            EntryKind::Scalar(ty) => {
                Value::decode(ty, bytes).expect("the parser makes no scalar entry of array type")
            }
        }
    }

    /// A field that is one u32 for all layers or an array with exactly one element for each of `n`.
    /// A scalar is repeated `n` times.
    ///
    /// # Errors
    /// The key is missing, has another type, or its array has another length than `n`.
    pub fn u32_or_array(&self, key: &str, n: usize) -> Result<Vec<u32>, GgufError> {
        self.opt_u32_or_array(key, n)?.ok_or_else(|| missing(key, "u32 or array of u32"))
    }

    /// As [`Meta::u32_or_array`]; `None` where the key is missing.
    ///
    /// # Errors
    /// The key has another type, or its array has another length than `n`.
    pub fn opt_u32_or_array(&self, key: &str, n: usize) -> Result<Option<Vec<u32>>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(a)) if a.len() == n => self.opt_u32s(key),
            Some(other) => match other.number().and_then(Number::whole) {
                Some(x) => Ok(Some(vec![x; n])),
                None => Err(wrong_type(key, &other, format!("u32 or array of {n} u32"))),
            },
        }
    }
}

/// The strings of an array, in order.
#[derive(Clone, Debug)]
pub struct ByteStrs<'a>(ArrayRef<'a>);

impl<'a> ByteStrs<'a> {
    /// Number of strings.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The strings in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        self.0.iter().map(|value| match value {
            Value::Str(bytes) => bytes,
            _ => unreachable!("ByteStrs is made of arrays of str only"),
        })
    }
}

fn missing(key: &str, wanted: &'static str) -> GgufError {
    GgufError::MissingKey { key: key.to_owned(), wanted }
}

fn wrong_type(key: &str, found: &Value<'_>, wanted: impl Into<String>) -> GgufError {
    // Of a number the type alone would not say what is wrong.
    let found = match found.number() {
        Some(_) => format!("{found} ({})", found.type_name()),
        None => found.type_name(),
    };
    GgufError::WrongType { key: key.to_owned(), found, wanted: wanted.into() }
}

fn array<'a>(value: Value<'a>, elems: &[ValueType]) -> Option<ArrayRef<'a>> {
    match value {
        Value::Array(a) if elems.contains(&a.elem()) => Some(a),
        _ => None,
    }
}

/// The elements of an array, each as `convert` takes it.
fn each<'a, T>(value: Value<'a>, convert: fn(Value<'a>) -> Option<T>) -> Option<Vec<T>> {
    match value {
        Value::Array(a) => a.iter().map(convert).collect(),
        _ => None,
    }
}

fn flag(value: Value<'_>) -> Option<bool> {
    match value {
        Value::Bool(flag) => Some(flag),
        value => value.number()?.flag(),
    }
}

//! Readers of JSON values: texts, booleans, numbers, lists of token ids. Each type has one reader, whose error says
//! in plain words which type was expected.
//!
//! A field is given as the text of the body that it came in, or as a tree: a request that was translated from another
//! API is never written as text again.

use std::borrow::Cow;
use std::{fmt, io};

use brigade_dialect::values::number::{Number, of_text};
use serde::de::{Deserialize, Deserializer, Unexpected, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::ApiError;

/// Characters of a client's number that a message repeats.
const SHOWN_CHARS: usize = 40;

/// The type of a JSON value. Errors name it by its article and noun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// JSON's `null`, which stands for a missing value.
    Null,
    /// `true` or `false`.
    Boolean,
    /// A number, whole or not.
    Number,
    /// A string.
    Text,
    /// An array.
    List,
    /// An object.
    Object,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "null",
            Self::Boolean => "a boolean",
            Self::Number => "a number",
            Self::Text => "a string",
            Self::List => "an array",
            Self::Object => "an object",
        })
    }
}

impl Kind {
    /// The type of the value whose text begins with this byte.
    fn of_first(byte: Option<u8>) -> Self {
        match byte {
            Some(b'{') => Self::Object,
            Some(b'[') => Self::List,
            Some(b'"') => Self::Text,
            Some(b't' | b'f') => Self::Boolean,
            Some(b'n') => Self::Null,
            _ => Self::Number,
        }
    }

    fn of_tree(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Boolean,
            Value::Number(_) => Self::Number,
            Value::String(_) => Self::Text,
            Value::Array(_) => Self::List,
            Value::Object(_) => Self::Object,
        }
    }
}

/// A value of a request.
#[derive(Clone, Copy, Debug)]
pub enum Given<'a> {
    /// The value's text in the body.
    Text(&'a RawValue),
    /// A value of a request that was translated from another API.
    Tree(&'a Value),
}

impl<'a> Given<'a> {
    /// The value's JSON type.
    pub fn kind(self) -> Kind {
        match self {
            Self::Text(raw) => Kind::of_first(raw.get().bytes().next()),
            Self::Tree(value) => Kind::of_tree(value),
        }
    }

    /// The value as JSON text.
    pub fn json(self) -> Cow<'a, str> {
        match self {
            Self::Text(raw) => raw.get().into(),
            Self::Tree(value) => value.to_string().into(),
        }
    }

    /// The bytes of its JSON text.
    pub fn n_bytes(self) -> usize {
        match self {
            Self::Text(raw) => raw.get().len(),
            Self::Tree(value) => {
                let mut counted = Counted(0);
                // Counting has no errors.
                let _ = serde_json::to_writer(&mut counted, value);
                counted.0
            }
        }
    }

    /// Whether it asks for nothing: `false`, `""`, `[]` or `{}`.
    pub fn asks_nothing(self) -> bool {
        match self {
            Self::Text(raw) => {
                let asks = raw.get().bytes().filter(|b| !b.is_ascii_whitespace()).take(6);
                let asks = asks.collect::<Vec<_>>();
                matches!(asks.as_slice(), b"false" | b"[]" | b"{}" | b"\"\"")
            }
            Self::Tree(Value::Bool(wanted)) => !wanted,
            Self::Tree(Value::String(text)) => text.is_empty(),
            Self::Tree(Value::Array(list)) => list.is_empty(),
            Self::Tree(Value::Object(map)) => map.is_empty(),
            Self::Tree(Value::Null | Value::Number(_)) => false,
        }
    }

    /// The type of a list's first element, which is found without reading the list; `None`: the list is empty.
    pub fn first_kind(self) -> Option<Kind> {
        match self {
            Self::Text(raw) => match raw.get()[1..].trim_start().bytes().next() {
                Some(b']') => None,
                byte => Some(Kind::of_first(byte)),
            },
            Self::Tree(value) => value.get(0).map(Kind::of_tree),
        }
    }

    /// The number that it is.
    fn number(self) -> Option<Number> {
        match self {
            Self::Text(raw) => of_text(raw.get()),
            Self::Tree(Value::Number(number)) => of_text(&number.to_string()),
            Self::Tree(_) => None,
        }
    }
}

/// Bytes that were written.
struct Counted(usize);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A type of fields.
pub trait FieldValue: Sized {
    /// Reads `given`, which is called `path`.
    ///
    /// # Errors
    /// The value is something else; the message names it.
    fn of(path: &str, given: Given<'_>) -> Result<Self, ApiError>;
}

/// A complaint that `path` is of another kind.
fn must_be(path: &str, wanted: &str, given: Given<'_>) -> ApiError {
    ApiError::field(path, format!("{path} must be {wanted}, not {}", given.kind()))
}

impl FieldValue for String {
    fn of(path: &str, given: Given<'_>) -> Result<Self, ApiError> {
        match given {
            Given::Tree(Value::String(text)) => Ok(text.clone()),
            // Escapes may stand for no character.
            Given::Text(raw) if given.kind() == Kind::Text => serde_json::from_str(raw.get())
                .map_err(|error| ApiError::field(path, format!("{path}: {}", reason(&error)))),
            _ => Err(must_be(path, "a string", given)),
        }
    }
}

impl FieldValue for bool {
    fn of(path: &str, given: Given<'_>) -> Result<Self, ApiError> {
        let value = match given {
            Given::Tree(value) => value.as_bool(),
            Given::Text(raw) => match raw.get().trim() {
                "true" => Some(true),
                "false" => Some(false),
                _ => None,
            },
        };
        value.ok_or_else(|| must_be(path, "true or false", given))
    }
}

macro_rules! whole_numbers {
    ($($ty:ty),*) => {$(
        impl FieldValue for $ty {
            fn of(path: &str, given: Given<'_>) -> Result<Self, ApiError> {
                let number = given.number().ok_or_else(|| must_be(path, "a whole number", given))?;
                number.whole().ok_or_else(|| {
                    let shown: String = given.json().chars().take(SHOWN_CHARS).collect();
                    let (least, most) = (<$ty>::MIN, <$ty>::MAX);
                    let message =
                        format!("{path} is {shown}: a whole number from {least} to {most} is needed");
                    ApiError::field(path, message)
                })
            }
        }
    )*};
}

whole_numbers!(u32, u64, i64, usize);

impl FieldValue for f64 {
    fn of(path: &str, given: Given<'_>) -> Result<Self, ApiError> {
        given.number().map(Number::real).ok_or_else(|| must_be(path, "a number", given))
    }
}

impl FieldValue for f32 {
    fn of(path: &str, given: Given<'_>) -> Result<Self, ApiError> {
        given.number().map(Number::real_f32).ok_or_else(|| must_be(path, "a number", given))
    }
}

/// Token ids: a list may be long, and is read as numbers at once.
impl FieldValue for Vec<u32> {
    fn of(path: &str, given: Given<'_>) -> Result<Self, ApiError> {
        if given.kind() != Kind::List {
            return Err(must_be(path, "a list of token ids", given));
        }
        let ids: Result<Vec<TokenId>, _> = match given {
            Given::Text(raw) => serde_json::from_str(raw.get()),
            Given::Tree(value) => Vec::deserialize(value),
        };
        let ids = ids.map_err(|_| {
            let message = format!(
                "{path} holds something else than token ids: whole numbers from 0 to {} are needed",
                u32::MAX
            );
            ApiError::field(path, message)
        })?;
        Ok(ids.into_iter().map(|TokenId(id)| id).collect())
    }
}

/// A token id, read from a number.
struct TokenId(u32);

impl<'de> Deserialize<'de> for TokenId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Id;
        impl Visitor<'_> for Id {
            type Value = TokenId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {}", u32::MAX)
            }

            fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<TokenId, E> {
                let whole = Number::Whole(id.into()).whole();
                whole.map(TokenId).ok_or_else(|| E::invalid_value(Unexpected::Unsigned(id), &self))
            }

            fn visit_i64<E: serde::de::Error>(self, id: i64) -> Result<TokenId, E> {
                Err(E::invalid_value(Unexpected::Signed(id), &self))
            }

            fn visit_f64<E: serde::de::Error>(self, id: f64) -> Result<TokenId, E> {
                let whole = Number::Real(id).whole();
                whole.map(TokenId).ok_or_else(|| E::custom(format!("{id} is not a token id")))
            }
        }
        from.deserialize_any(Id)
    }
}

/// An error's reason without its line and column, which would count from the field's start, not from the body's.
pub fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(what, _)| what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T: FieldValue>(text: &str) -> Result<T, String> {
        let raw = RawValue::from_string(text.to_string()).unwrap();
        let message = |e: ApiError| e.body()["error"]["message"].as_str().unwrap().to_string();
        T::of("x", Given::Text(&raw)).map_err(message)
    }

    /// The same value as it stands in a body and as a tree.
    fn both(text: &str) -> (Box<RawValue>, Value) {
        (RawValue::from_string(text.to_string()).unwrap(), serde_json::from_str(text).unwrap())
    }

    #[test]
    fn a_tree_is_read_as_its_text_is() {
        fn read<T: FieldValue + std::fmt::Debug>(given: Given<'_>) -> String {
            let message = |e: ApiError| e.body()["error"]["message"].to_string();
            format!("{:?}", T::of("x", given).map_err(message))
        }
        let readers: [fn(Given<'_>) -> String; 8] = [
            read::<String>,
            read::<bool>,
            read::<u32>,
            read::<i64>,
            read::<usize>,
            read::<f32>,
            read::<f64>,
            read::<Vec<u32>>,
        ];
        for text in [
            "null",
            "true",
            "false",
            "0",
            "-3",
            "3.5",
            "18446744073709551615",
            "1e+300",
            "\"\"",
            "\"a\\n\"",
            "[]",
            "[1,2]",
            "[1.5]",
            "[\"a\",null]",
            "{}",
            "{\"a\":[1,{}]}",
        ] {
            let (raw, value) = both(text);
            let (text, tree) = (Given::Text(&raw), Given::Tree(&value));
            assert_eq!(text.kind(), tree.kind(), "{raw}");
            assert_eq!(text.n_bytes(), tree.n_bytes(), "{raw}");
            assert_eq!(text.asks_nothing(), tree.asks_nothing(), "{raw}");
            if text.kind() == Kind::List {
                assert_eq!(text.first_kind(), tree.first_kind(), "{raw}");
            }
            for reader in readers {
                assert_eq!(reader(text), reader(tree), "{raw}");
            }
        }
    }

    #[test]
    fn each_kind_is_read_from_every_spelling() {
        assert_eq!(
            (of::<u32>("3.0"), of::<i64>("-3e0"), of::<usize>("30e-1")),
            (Ok(3), Ok(-3), Ok(3))
        );
        assert_eq!((of::<f32>("3"), of::<f64>("0.25")), (Ok(3.0), Ok(0.25)));
        assert_eq!(of::<Vec<u32>>("[1, 2.0, 3e0]"), Ok(vec![1, 2, 3]));
        assert_eq!(of::<u64>("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(
            (of::<bool>(" true"), of::<String>("\"a\\n\"")),
            (Ok(true), Ok("a\n".to_string()))
        );
    }

    #[test]
    fn what_is_wrong_is_said_in_plain_words() {
        for (message, words) in [
            (
                of::<u32>("3.5").unwrap_err(),
                "x is 3.5: a whole number from 0 to 4294967295 is needed",
            ),
            (of::<u32>("-1").unwrap_err(), "x is -1: a whole number from 0"),
            (
                of::<i64>("1e300").unwrap_err(),
                "x is 1e300: a whole number from -9223372036854775808",
            ),
            (of::<u32>("\"3\"").unwrap_err(), "x must be a whole number, not a string"),
            (of::<f32>("true").unwrap_err(), "x must be a number, not a boolean"),
            (of::<bool>("1").unwrap_err(), "x must be true or false, not a number"),
            (of::<String>("[]").unwrap_err(), "x must be a string, not an array"),
            (of::<String>("\"\\ud800\"").unwrap_err(), "x: "),
            (of::<Vec<u32>>("{}").unwrap_err(), "x must be a list of token ids, not an object"),
            (of::<Vec<u32>>("[1, -2]").unwrap_err(), "x holds something else than token ids"),
            (of::<Vec<u32>>("[4294967296]").unwrap_err(), "x holds something else than token ids"),
            (of::<Vec<u32>>("[1.5]").unwrap_err(), "whole numbers from 0 to 4294967295 are needed"),
            (of::<Vec<u32>>("[null]").unwrap_err(), "x holds something else than token ids"),
        ] {
            assert!(message.starts_with(words) || message.contains(words), "{message}");
        }
        let long = format!("1{}", "0".repeat(1000));
        assert!(of::<u32>(&long).unwrap_err().len() < 200);
    }
}

//! What a field of a request can be read as: a text, yes or no, a number, a list of token ids. Each kind has one reader,
//! which says in plain words what was wanted where something else came.

use std::fmt;

use brigade_dialect::number::{Number, of_text};
use serde::de::{Deserialize, Deserializer, Unexpected, Visitor};
use serde_json::value::RawValue;

use super::error::ApiError;

/// Characters of a client's number that a message repeats.
const SHOWN_CHARS: usize = 40;

/// A type of fields.
pub trait FieldValue: Sized {
    /// Reads `raw`, which is called `path`.
    ///
    /// # Errors
    /// It is something else; the message names it.
    fn of(path: &str, raw: &RawValue) -> Result<Self, ApiError>;
}

/// A complaint that `path` is of another kind.
fn must_be(path: &str, wanted: &str, raw: &RawValue) -> ApiError {
    ApiError::field(path, format!("{path} must be {wanted}, not {}", kind(raw)))
}

impl FieldValue for String {
    fn of(path: &str, raw: &RawValue) -> Result<Self, ApiError> {
        if kind(raw) != "a string" {
            return Err(must_be(path, "a string", raw));
        }
        // Escapes may stand for no character.
        serde_json::from_str(raw.get())
            .map_err(|error| ApiError::field(path, format!("{path}: {}", reason(&error))))
    }
}

impl FieldValue for bool {
    fn of(path: &str, raw: &RawValue) -> Result<Self, ApiError> {
        match raw.get().trim() {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(must_be(path, "true or false", raw)),
        }
    }
}

macro_rules! whole_numbers {
    ($($ty:ty),*) => {$(
        impl FieldValue for $ty {
            fn of(path: &str, raw: &RawValue) -> Result<Self, ApiError> {
                let number = of_text(raw.get());
                let number = number.ok_or_else(|| must_be(path, "a whole number", raw))?;
                number.whole().ok_or_else(|| {
                    let shown: String = raw.get().chars().take(SHOWN_CHARS).collect();
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
    fn of(path: &str, raw: &RawValue) -> Result<Self, ApiError> {
        of_text(raw.get()).map(Number::real).ok_or_else(|| must_be(path, "a number", raw))
    }
}

impl FieldValue for f32 {
    fn of(path: &str, raw: &RawValue) -> Result<Self, ApiError> {
        of_text(raw.get()).map(Number::real_f32).ok_or_else(|| must_be(path, "a number", raw))
    }
}

/// Token ids: a list may be long, and is read as numbers at once.
impl FieldValue for Vec<u32> {
    fn of(path: &str, raw: &RawValue) -> Result<Self, ApiError> {
        if kind(raw) != "an array" {
            return Err(must_be(path, "a list of token ids", raw));
        }
        let ids: Result<Vec<TokenId>, _> = serde_json::from_str(raw.get());
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

/// One of them.
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
                whole.map(TokenId).ok_or_else(|| E::custom(format!("{id} is no token id")))
            }
        }
        from.deserialize_any(Id)
    }
}

/// What a value that stands for none is called.
pub const NULL: &str = "null";
/// What an object is called.
pub const OBJECT: &str = "an object";

/// What a JSON value is, for messages.
pub fn kind(value: &RawValue) -> &'static str {
    match value.get().trim_start().as_bytes().first() {
        Some(b'{') => OBJECT,
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => NULL,
        _ => "a number",
    }
}

/// What a reader found, without its place: that would be one in the field, not in the body.
pub fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.rsplit_once(" at line ").map_or(text.clone(), |(what, _)| what.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T: FieldValue>(text: &str) -> Result<T, String> {
        let raw = RawValue::from_string(text.to_string()).unwrap();
        T::of("x", &raw).map_err(|e| e.body()["error"]["message"].as_str().unwrap().to_string())
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

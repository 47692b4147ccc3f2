//! Numbers of JSON, read as those of model files are: 3.0 and 3e0 are the whole number 3.

pub use brigade_gguf::Number;
use serde_json::Value;

/// The number that a value is; `None` for everything else.
pub fn of(value: &Value) -> Option<Number> {
    let number = value.as_number()?;
    number.as_i128().map(Number::Whole).or_else(|| number.as_f64().map(Number::Real))
}

/// The number that a JSON text is. One that is beyond all types is infinite.
pub fn of_text(text: &str) -> Option<Number> {
    let text = text.trim();
    if !text.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
        return None;
    }
    let whole = text.parse().map(Number::Whole);
    whole.or_else(|_| text.parse().map(Number::Real)).ok()
}

/// The whole number that a value is, where a `T` holds it.
pub fn whole<T: TryFrom<i128>>(value: &Value) -> Option<T> {
    of(value)?.whole()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn three_is_three() {
        for text in ["3", "3.0", "3e0", "30e-1", " 3 "] {
            assert_eq!(of_text(text).and_then(Number::whole), Some(3_u32), "{text}");
            let value: Value = serde_json::from_str(text).unwrap();
            assert_eq!(whole(&value), Some(3_u32), "{text}");
        }
        assert_eq!(whole::<i64>(&json!(i64::MIN)), Some(i64::MIN));
        assert_eq!(whole::<u64>(&json!(u64::MAX)), Some(u64::MAX));
        assert_eq!(of_text("1e999"), Some(Number::Real(f64::INFINITY)));
        for text in ["true", "\"3\"", "null", "[3]", "inf", "nan", ""] {
            assert_eq!(of_text(text), None, "{text}");
        }
        for value in [json!(true), json!("3"), json!(null), json!([3])] {
            assert_eq!(of(&value), None, "{value}");
        }
    }
}

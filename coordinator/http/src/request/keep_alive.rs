//! Ollama's `keep_alive`: how long an idle model stays loaded. It counts where models are loaded on demand.

use std::time::Duration;

use brigade_dialect::values::number::of_text;

use crate::error::ApiError;
use crate::request::fields::Given;

/// How long the model should stay loaded, as the client wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// For as long as the server runs.
    Stay,
    /// For this long after its last use.
    For(Duration),
}

/// Units of a time, as Go writes them, with their seconds.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("m", 60.0),
    ("h", 3600.0),
];

/// The value of `keep_alive`: a number of seconds, or a text such as `5m` or `1h30m`; below zero: it stays.
///
/// # Errors
/// The value is neither.
pub(crate) fn keep_alive(value: Given<'_>) -> Result<Keep, ApiError> {
    let text = value.json();
    let seconds = match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        Some(text) => of_go(text),
        None => number(&text),
    };
    let seconds = seconds.ok_or_else(|| {
        let message = "keep_alive is a number of seconds, or a text such as \"5m\" or \"1h30m\"; below zero, the model stays";
        ApiError::field("keep_alive", message)
    })?;
    if seconds < 0.0 {
        Ok(Keep::Stay)
    } else {
        // A time that is too long for the type means for ever.
        Ok(Duration::try_from_secs_f64(seconds).map_or(Keep::Stay, Keep::For))
    }
}

fn number(text: &str) -> Option<f64> {
    of_text(text).map(|number| number.real())
}

fn of_go(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    // Without a unit it is a number of seconds.
    if let Some(seconds) = number(rest) {
        return Some(sign * seconds);
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (count, behind) = rest.split_at(digits);
        let unit = behind.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let (_, of_unit) = UNITS.iter().find(|(name, _)| *name == unit)?;
        seconds += number(count)? * of_unit;
        rest = behind;
    }
    Some(sign * seconds).filter(|_| text.len() > 1)
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    #[test]
    fn times_are_read_as_ollama_reads_them() {
        let of = |text: &str| {
            let value = RawValue::from_string(text.to_owned()).unwrap();
            keep_alive(Given::Text(&value)).ok()
        };
        let seconds = |n: f64| Some(Keep::For(Duration::from_secs_f64(n)));
        for (text, keep) in [
            ("0", seconds(0.0)),
            ("300", seconds(300.0)),
            ("\"5m\"", seconds(300.0)),
            ("\"1h30m\"", seconds(5400.0)),
            ("\"1.5s\"", seconds(1.5)),
            ("\"20ms\"", seconds(0.02)),
            ("\"0s\"", seconds(0.0)),
            ("\"60\"", seconds(60.0)),
            ("-1", Some(Keep::Stay)),
            ("\"-1m\"", Some(Keep::Stay)),
            ("1e300", Some(Keep::Stay)),
        ] {
            assert_eq!(of(text), keep, "{text}");
        }
        for text in ["true", "\"\"", "\"-\"", "\"m\"", "\"5x\"", "\"5 m\"", "[]", "\"1m2\""] {
            assert_eq!(of(text), None, "{text}");
        }
    }
}

//! Parts of Python that templates expect: `tojson` that writes as `json.dumps`, string methods, and the markers of a
//! training library, which do nothing here.

use std::io;

use minijinja::value::{Kwargs, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State};

use super::list::List;
use super::strings;
use serde_json::ser::{Formatter, Serializer};

/// Methods that Python has and the engine does not.
pub fn method(
    state: &mut State,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if let Some(made) = value.as_str().and_then(|text| strings::method(text, name, args)) {
        return made;
    }
    match (value.kind(), name) {
        // Values do not change here, so that a copy is what was copied.
        (ValueKind::Map | ValueKind::Seq, "copy") => {
            return from_args::<()>(args).map(|()| value.clone());
        }
        (ValueKind::Seq, "index") => {
            let (item,): (Value,) = from_args(args)?;
            let at = value.try_iter()?.position(|other| other == item);
            return at.map(Value::from).ok_or_else(|| bad("the item is not in the list"));
        }
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// Whether Python could loop over a value: not over `None`, which the engine treats as empty.
pub fn is_iterable(value: &Value) -> bool {
    // A list that grows is copied where it is looped over.
    value.downcast_object_ref::<List>().is_some() || (!value.is_none() && value.try_iter().is_ok())
}

/// Replaces `{% generation %} .. {% endgeneration %}`, which mark text for training, by tags that do
/// nothing and strip the same white space.
pub fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        // The end is no part of the begin: `{%}` is no tag.
        let Some(len) = tag[2..].find("%}").map(|i| i + 4) else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(len);
        let name = tag[2..len - 2].trim_matches(['-', '+', ' ', '\t', '\n', '\r']);
        match name {
            "generation" => out.push_str(&tag.replace(name, "if true")),
            "endgeneration" => out.push_str(&tag.replace(name, "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// `json.dumps(value, ensure_ascii=False)`: no HTML escapes, a space after each separator.
/// Knows `indent`, `separators`, `sort_keys` and `ensure_ascii`.
pub fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort: Option<bool> = options.get("sort_keys")?;
    let ascii: Option<bool> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    let (item, key) = match separators.as_deref() {
        None if indent.is_some() => (",", ": "),
        None => (", ", ": "),
        Some([item, key]) => (item.as_str(), key.as_str()),
        Some(_) => return Err(bad("separators must be two strings")),
    };
    let style = Dumps { item, key, indent, depth: 0, ascii: ascii.unwrap_or(false), empty: true };
    let mut out = Vec::new();
    let mut to = Serializer::with_formatter(&mut out, style);
    let written = if sort.unwrap_or(false) {
        let mut json = serde_json::to_value(value).map_err(|e| bad(e.to_string()))?;
        json.sort_all_objects();
        serde::Serialize::serialize(&json, &mut to)
    } else {
        serde::Serialize::serialize(value, &mut to)
    };
    written.map_err(|e| bad(e.to_string()))?;
    String::from_utf8(out).map_err(|e| bad(e.to_string()))
}

/// The remainder of a division, which has the sign of the divisor; of a text, what it formats.
///
/// # Errors
/// The values are of other kinds, or the divisor is zero.
pub fn remainder(left: &Value, right: &Value) -> Result<Value, Error> {
    if let Some(text) = left.as_str() {
        return strings::percent(text, right).map(Value::from);
    }
    let whole = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        ValueKind::Number if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    let float = |value: &Value| match value.kind() {
        ValueKind::Bool | ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    };
    match (whole(left), whole(right), float(left), float(right)) {
        (_, Some(0), ..) => Err(bad("a remainder of a division by zero")),
        (Some(a), Some(b), ..) => {
            // The engine's own integers.
            let rest = a.checked_rem(b).unwrap_or(0);
            let rest = if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest };
            Ok(i64::try_from(rest).map_or_else(|_| Value::from(rest), Value::from))
        }
        (_, _, Some(_), Some(0.0)) => Err(bad("a remainder of a division by zero")),
        (_, _, Some(a), Some(b)) => {
            let rest = a % b;
            Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }))
        }
        _ => Err(bad(format!(
            "tried to use % operator on unsupported types {} and {}",
            left.kind(),
            right.kind()
        ))),
    }
}

/// A source as Jinja reads it: its line ends are line feeds, and a byte order mark is no text.
pub fn with_line_feeds(source: &str) -> String {
    let source = source.strip_prefix('\u{feff}').unwrap_or(source);
    source.replace("\r\n", "\n").replace('\r', "\n")
}

fn bad(what: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

/// The layout of `json.dumps`.
struct Dumps<'a> {
    item: &'a str,
    key: &'a str,
    indent: Option<usize>,
    depth: usize,
    ascii: bool,
    /// The container just opened has no item yet.
    empty: bool,
}

impl Dumps<'_> {
    fn open<W: io::Write + ?Sized>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.empty = true;
        out.write_all(bracket)
    }

    fn close<W: io::Write + ?Sized>(&mut self, out: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if !self.empty {
            self.new_line(out)?;
        }
        self.empty = false;
        out.write_all(bracket)
    }

    fn next<W: io::Write + ?Sized>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if !first {
            out.write_all(self.item.as_bytes())?;
        }
        self.empty = false;
        self.new_line(out)
    }

    fn new_line<W: io::Write + ?Sized>(&self, out: &mut W) -> io::Result<()> {
        match self.indent {
            None => Ok(()),
            Some(n) => write!(out, "\n{:width$}", "", width = n * self.depth),
        }
    }
}

impl Formatter for Dumps<'_> {
    fn begin_array<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"[")
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"]")
    }

    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.open(out, b"{")
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        self.close(out, b"}")
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.next(out, first)
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }

    fn write_f64<W: io::Write + ?Sized>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        out.write_all(python_float(value).as_bytes())
    }

    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        text: &str,
    ) -> io::Result<()> {
        if !self.ascii {
            return out.write_all(text.as_bytes());
        }
        for c in text.chars() {
            if c.is_ascii() {
                write!(out, "{c}")?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(out, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }
}

/// `repr` of a float: exponents from 1e16 up and below 1e-4, with a sign and two digits.
fn python_float(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || (1e-4..1e16).contains(&magnitude) {
        return format!("{value:?}");
    }
    let text = format!("{value:e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, n) = match exponent.strip_prefix('-') {
                Some(n) => ('-', n),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{n:0>2}")
        }
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::value::Serde;

    fn dumps(json: &str, options: &[(&'static str, Value)]) -> String {
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        let options = Kwargs::from_iter(options.iter().cloned());
        tojson(&Value::from(Serde(value)), options).unwrap()
    }

    #[test]
    fn json_is_laid_out_as_python_does() {
        let json = r#"{"b":[1,2.0,null,true],"a":{"x":"é<&'\n"},"e":[],"o":{}}"#;
        assert_eq!(
            dumps(json, &[]),
            r#"{"b": [1, 2.0, null, true], "a": {"x": "é<&'\n"}, "e": [], "o": {}}"#
        );
        assert_eq!(
            dumps(r#"{"a":[1,{}],"b":2}"#, &[("indent", Value::from(2))]),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": 2\n}"
        );
        let options =
            [("separators", Value::from(vec![",", ":"])), ("sort_keys", Value::from(true))];
        assert_eq!(dumps(r#"{"b":[1,2],"a":3}"#, &options), r#"{"a":3,"b":[1,2]}"#);
        assert_eq!(
            dumps(r#""é😀""#, &[("ensure_ascii", Value::from(true))]),
            r#""\u00e9\ud83d\ude00""#
        );
    }

    #[test]
    fn floats_are_written_as_python_does() {
        let cases = [
            (1e-7, "1e-07"),
            (1.5e-5, "1.5e-05"),
            (0.0001, "0.0001"),
            (1e16, "1e+16"),
            (123456789.0, "123456789.0"),
            (1e15, "1000000000000000.0"),
            (-2.5e300, "-2.5e+300"),
            (0.0, "0.0"),
        ];
        for (value, text) in cases {
            assert_eq!(python_float(value), text);
        }
    }

    #[test]
    fn generation_tags_vanish_with_their_white_space_control() {
        assert_eq!(
            without_generation_tags("a{%- generation -%}b{% endgeneration %}{{ c }}{% x"),
            "a{%- if true -%}b{% endif %}{{ c }}{% x"
        );
        for other in ["{% set generation = 1 %}", "{%}", "{%}a%}", "{%%}"] {
            assert_eq!(without_generation_tags(other), other);
        }
    }
}

//! Turns JSON as models write it into JSON that parsers take.
//!
//! [`Mender`] copies a value character by character as it arrives. On the way it repairs errors that models often
//! make, where only one meaning is possible:
//!
//! - line breaks and unknown escapes in strings;
//! - strings in single quotes;
//! - commas before a closing bracket;
//! - Python's `True`, `False` and `None`.
//!
//! [`Scan`] only finds where a value ends.

use std::fmt::Write;

/// Deepest nesting of brackets; deeper text is not taken for JSON.
const MAX_DEPTH: usize = 256;

/// Longest number or word.
const MAX_SCALAR_BYTES: usize = 512;

/// The text is no JSON and no repair is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// The kind of character that must come next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    Value,
    /// A value, or the end of an array that has none yet.
    ValueOrEnd,
    /// A key, or the end of an object.
    KeyOrEnd,
    Colon,
    /// A comma or a closing bracket.
    Next,
}

/// The reader's place in a string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Backslash,
    /// After `\u`: digits so far.
    Unicode(u8),
}

/// Copies one JSON value and mends it.
#[derive(Clone, Debug)]
pub struct Mender {
    /// Open brackets: true for objects.
    open: Vec<bool>,
    want: Want,
    /// The quote that ends the string we are in.
    quote: Option<char>,
    is_key: bool,
    escape: Escape,
    /// The digits so far after `\u`.
    digits: String,
    /// A number or word that is not complete.
    scalar: String,
    /// A comma and the white space behind it, until something follows.
    comma: String,
    done: bool,
}

impl Default for Mender {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            want: Want::Value,
            quote: None,
            is_key: false,
            escape: Escape::None,
            digits: String::new(),
            scalar: String::new(),
            comma: String::new(),
            done: false,
        }
    }
}

impl Mender {
    /// Copies from `text` to `out` until the value ends; gives the number of bytes read.
    ///
    /// # Errors
    /// [`Broken`] and the place in `text`; what was copied before stays in `out`.
    pub fn push(&mut self, text: &str, out: &mut String) -> Result<usize, (Broken, usize)> {
        for (at, c) in text.char_indices() {
            if self.done {
                return Ok(at);
            }
            self.char(c, out).map_err(|broken| (broken, at))?;
        }
        Ok(text.len())
    }

    /// Whether the value is complete.
    pub fn is_done(&self) -> bool {
        self.done
    }

    fn char(&mut self, c: char, out: &mut String) -> Result<(), Broken> {
        if let Some(quote) = self.quote {
            self.in_string(c, quote, out);
            return Ok(());
        }
        if !self.scalar.is_empty() {
            if c.is_alphanumeric() || matches!(c, '+' | '-' | '.') {
                self.scalar.push(c);
                return if self.scalar.len() > MAX_SCALAR_BYTES { Err(Broken) } else { Ok(()) };
            }
            self.end_scalar(out)?;
        }
        if c.is_whitespace() {
            // JSON knows four kinds of white space; others come from a model's odd tokens.
            let c = if matches!(c, ' ' | '\n' | '\r' | '\t') { c } else { ' ' };
            if self.comma.is_empty() {
                out.push(c)
            } else {
                self.comma.push(c)
            };
            return Ok(());
        }
        match (self.want, c) {
            (Want::Value | Want::ValueOrEnd, '{' | '[') => {
                self.flush_comma(out);
                self.open(c == '{', out)
            }
            (Want::Value | Want::ValueOrEnd, '"' | '\'') => {
                self.flush_comma(out);
                self.begin_string(c, false, out);
                Ok(())
            }
            (Want::KeyOrEnd, '"' | '\'') => {
                self.flush_comma(out);
                self.begin_string(c, true, out);
                Ok(())
            }
            (Want::Colon, ':') => {
                out.push(':');
                self.want = Want::Value;
                Ok(())
            }
            (Want::Next, ',') => {
                self.comma.push(',');
                self.want = if self.in_object() { Want::KeyOrEnd } else { Want::ValueOrEnd };
                Ok(())
            }
            (Want::Next | Want::KeyOrEnd, '}') if self.in_object() => self.close('}', out),
            (Want::Next | Want::ValueOrEnd, ']') if !self.in_object() => self.close(']', out),
            (Want::Value | Want::ValueOrEnd, c) if c.is_alphanumeric() || c == '-' => {
                self.flush_comma(out);
                self.scalar.push(c);
                Ok(())
            }
            _ => Err(Broken),
        }
    }

    /// The brackets that would complete the value, if it stands where it can end.
    pub fn completion(&self) -> Option<String> {
        let can_end = matches!(self.want, Want::Next | Want::KeyOrEnd | Want::ValueOrEnd);
        (can_end && self.quote.is_none() && self.scalar.is_empty() && !self.open.is_empty())
            .then(|| self.open.iter().rev().map(|object| if *object { '}' } else { ']' }).collect())
    }

    fn in_object(&self) -> bool {
        self.open.last() == Some(&true)
    }

    fn flush_comma(&mut self, out: &mut String) {
        out.push_str(&self.comma);
        self.comma.clear();
    }

    fn open(&mut self, object: bool, out: &mut String) -> Result<(), Broken> {
        if self.open.len() == MAX_DEPTH {
            return Err(Broken);
        }
        self.open.push(object);
        out.push(if object { '{' } else { '[' });
        self.want = if object { Want::KeyOrEnd } else { Want::ValueOrEnd };
        Ok(())
    }

    fn close(&mut self, bracket: char, out: &mut String) -> Result<(), Broken> {
        if self.open.pop().is_none() {
            return Err(Broken);
        }
        // A comma before it is left out, the white space behind the comma is not worth keeping.
        self.comma.clear();
        out.push(bracket);
        self.value_ended();
        Ok(())
    }

    fn value_ended(&mut self) {
        self.want = Want::Next;
        self.done = self.open.is_empty();
    }

    fn begin_string(&mut self, quote: char, is_key: bool, out: &mut String) {
        out.push('"');
        self.quote = Some(quote);
        self.is_key = is_key;
        self.escape = Escape::None;
    }

    fn in_string(&mut self, c: char, quote: char, out: &mut String) {
        match self.escape {
            Escape::Backslash => self.escaped(c, quote, out),
            Escape::Unicode(n) if c.is_ascii_hexdigit() => {
                self.digits.push(c);
                self.escape = Escape::Unicode(n + 1);
                if n == 3 {
                    out.push_str("\\u");
                    out.push_str(&self.digits);
                    self.escape = Escape::None;
                }
            }
            Escape::Unicode(_) => {
                // Not a code: the backslash meant itself.
                out.push_str("\\\\u");
                out.push_str(&self.digits);
                self.escape = Escape::None;
                self.in_string(c, quote, out);
            }
            Escape::None if c == '\\' => self.escape = Escape::Backslash,
            Escape::None if c == quote => {
                out.push('"');
                self.quote = None;
                if self.is_key { self.want = Want::Colon } else { self.value_ended() }
            }
            Escape::None => push_escaped(c, out),
        }
    }

    fn escaped(&mut self, c: char, quote: char, out: &mut String) {
        self.escape = Escape::None;
        match c {
            'u' => {
                self.digits.clear();
                self.escape = Escape::Unicode(0);
            }
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => {
                out.push('\\');
                out.push(c);
            }
            '\'' => out.push('\''),
            _ => {
                out.push_str("\\\\");
                self.in_string(c, quote, out);
            }
        }
    }

    fn end_scalar(&mut self, out: &mut String) -> Result<(), Broken> {
        let word = std::mem::take(&mut self.scalar);
        let word = match word.as_str() {
            "True" => "true",
            "False" => "false",
            "None" => "null",
            other if serde_json::from_str::<serde_json::Value>(other).is_ok() => other,
            _ => return Err(Broken),
        };
        out.push_str(word);
        self.value_ended();
        Ok(())
    }
}

/// Writes a character of a string so that JSON may hold it.
pub fn push_escaped(c: char, out: &mut String) {
    match c {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if (c as u32) < 0x20 => {
            let _ = write!(out, "\\u{:04x}", c as u32);
        }
        c => out.push(c),
    }
}

/// A text as JSON string, without the quotes.
pub fn escape(text: &str, out: &mut String) {
    text.chars().for_each(|c| push_escaped(c, out));
}

/// `text` mended, if it is one JSON value with nothing but white space around it.
pub fn mend(text: &str) -> Option<String> {
    let (mut mender, mut out) = (Mender::default(), String::new());
    // The line break ends a number that stands alone.
    let text = format!("{}\n", text.trim());
    let read = mender.push(&text, &mut out).ok()?;
    let rest = text[read..].trim();
    (mender.is_done() && rest.is_empty()).then(|| out.trim_end().to_string())
}

/// Finds where a value that begins with a bracket ends.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scan {
    read: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Within the outermost brackets already.
    pub fn inside() -> Self {
        Self { depth: 1, ..Self::default() }
    }

    /// Reads on in `text`, which begins as it did before; gives the value's length once it is complete.
    pub fn end(&mut self, text: &str) -> Option<usize> {
        for &byte in &text.as_bytes()[self.read..] {
            self.read += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                _ if self.in_string => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.read);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn good_json_is_copied_and_bad_json_mended() {
        for (text, want) in [
            (r#"{"a": [1, -2.5e3, true, null], "b": {}}"#, None),
            ("{\"a\": \"x\ny\tz\"}", Some(r#"{"a": "x\ny\tz"}"#)),
            (r#"{"re": "\d+\.\w"}"#, Some(r#"{"re": "\\d+\\.\\w"}"#)),
            (r#"{"a": "\u00e9\u12"}"#, Some(r#"{"a": "\u00e9\\u12"}"#)),
            (r#"{"a": "it\'s"}"#, Some(r#"{"a": "it's"}"#)),
            (r#"{"a": [1, 2, ], }"#, Some(r#"{"a": [1, 2]}"#)),
            (r#"{"a": True, "b": None}"#, Some(r#"{"a": true, "b": null}"#)),
            (r#"{'a': 'say "hi"'}"#, Some(r#"{"a": "say \"hi\""}"#)),
        ] {
            let got = mend(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(got, want.unwrap_or(text));
            assert!(serde_json::from_str::<serde_json::Value>(&got).is_ok(), "{got}");
        }
        for text in
            [r#"{"a": "he said "hi""}"#, "{a: 1}", "{\"a\" 1}", "[1}", "{\"a\": wat}", "1 2"]
        {
            assert_eq!(mend(text), None, "{text}");
        }
        assert_eq!(mend(" 12 ").as_deref(), Some("12"));
    }

    #[test]
    fn what_follows_the_value_is_left() {
        let (mut mender, mut out) = (Mender::default(), String::new());
        assert_eq!(mender.push(r#"{"a": 1}} x"#, &mut out), Ok(8));
        assert!(mender.is_done());
        assert_eq!(out, r#"{"a": 1}"#);
        assert_eq!(Scan::default().end(r#"{"a": "}]"} x"#), Some(11));
    }

    fn value() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(serde_json::Value::from),
            any::<i64>().prop_map(serde_json::Value::from),
            "\\PC{0,6}|[\"\\\\\n\u{1}é😀]{0,4}".prop_map(serde_json::Value::from),
        ];
        leaf.prop_recursive(3, 16, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
                prop::collection::vec(("[a-z\"]{0,3}", inner), 0..4)
                    .prop_map(|fields| fields.into_iter().collect::<serde_json::Value>()),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_stays_the_same_for_every_cut(value in value(), cuts in prop::collection::vec(1usize..5, 1..20)) {
            let text = format!("{value}\n");
            let (mut mender, mut out) = (Mender::default(), String::new());
            let chars: Vec<char> = text.chars().collect();
            let (mut at, mut cuts) = (0, cuts.into_iter().cycle());
            while at < chars.len() && !mender.is_done() {
                let end = (at + cuts.next().unwrap()).min(chars.len());
                let piece: String = chars[at..end].iter().collect();
                mender.push(&piece, &mut out).unwrap();
                at = end;
            }
            prop_assert!(mender.is_done());
            prop_assert_eq!(out.trim_end(), text.trim_end());
        }
    }
}

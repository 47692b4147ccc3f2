//! Tool calls in Python's notation: finds the end of an argument, and its value as JSON.

use serde_json::{Map, Value};

/// Deepest nesting of a literal.
const MAX_DEPTH: usize = 64;

/// Whether a quote before `after` ends a string. Models forget to escape quotes, and one followed by a letter is more
/// likely an apostrophe than an end.
fn ends_string(after: &str) -> bool {
    matches!(after.trim_start().chars().next(), None | Some(',' | ')' | ']' | '}' | ':' | '+'))
}

/// Finds where one argument of a call ends: at a comma or at the closing bracket.
#[derive(Clone, Debug, Default)]
pub struct ArgumentEnd {
    read: usize,
    depth: usize,
    quote: Option<String>,
}

impl ArgumentEnd {
    /// Reads on in `text`, which begins as it did before. Gives the place of the comma or bracket.
    pub fn find(&mut self, text: &str, ended: bool) -> Option<usize> {
        while let Some(c) = text[self.read..].chars().next() {
            let rest = &text[self.read..];
            match (&self.quote, c) {
                (Some(_), '\\') => {
                    let next = rest.chars().nth(1)?;
                    self.read += 1 + next.len_utf8();
                    continue;
                }
                (Some(quote), '"' | '\'') if quote.starts_with(c) => {
                    // The text after a quote decides what the quote means.
                    let n = quote.len();
                    let is_open = if n == 3 { rest.len() < n } else { rest[1..].trim().is_empty() };
                    if is_open && !ended {
                        return None;
                    }
                    if rest.starts_with(quote.as_str()) && (n == 3 || ends_string(&rest[n..])) {
                        self.read += n;
                        self.quote = None;
                        continue;
                    }
                }
                (Some(_), _) => {}
                (None, '"' | '\'') => {
                    if rest.len() < 3 && !ended {
                        return None;
                    }
                    let triple = c.to_string().repeat(3);
                    let quote = if rest.starts_with(&triple) { triple } else { c.to_string() };
                    self.read += quote.len();
                    self.quote = Some(quote);
                    continue;
                }
                (None, '(' | '[' | '{') => self.depth += 1,
                (None, ')' | ',') if self.depth == 0 => return Some(self.read),
                (None, ')' | ']' | '}') => self.depth = self.depth.saturating_sub(1),
                (None, _) => {}
            }
            self.read += c.len_utf8();
        }
        None
    }
}

/// The value of a literal: strings, numbers, `True`, `None`, lists, tuples, dictionaries. `None` for anything else.
pub fn literal(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text.trim() };
    let value = reader.value(0)?;
    reader.skip();
    reader.rest.is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn skip(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn take(&mut self, c: char) -> bool {
        self.skip();
        match self.rest.strip_prefix(c) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.skip();
        match self.rest.chars().next()? {
            '"' | '\'' => self.string().map(Value::String),
            '[' => self.list('[', ']', depth),
            '(' => self.list('(', ')', depth),
            '{' => self.dictionary(depth),
            _ => self.word(),
        }
    }

    fn list(&mut self, open: char, close: char, depth: usize) -> Option<Value> {
        self.take(open);
        let mut items = Vec::new();
        while !self.take(close) {
            items.push(self.value(depth + 1)?);
            if !self.take(',') {
                return self.take(close).then_some(Value::Array(items));
            }
        }
        Some(Value::Array(items))
    }

    fn dictionary(&mut self, depth: usize) -> Option<Value> {
        self.take('{');
        let mut fields = Map::new();
        while !self.take('}') {
            let key = match self.value(depth + 1)? {
                Value::String(key) => key,
                other => other.to_string(),
            };
            if !self.take(':') {
                return None;
            }
            fields.insert(key, self.value(depth + 1)?);
            if !self.take(',') {
                return self.take('}').then_some(Value::Object(fields));
            }
        }
        Some(Value::Object(fields))
    }

    fn word(&mut self) -> Option<Value> {
        let stops = |c: char| c.is_whitespace() || matches!(c, ',' | ')' | ']' | '}' | ':');
        let end = self.rest.find(stops).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word {
            "True" | "true" => Some(Value::Bool(true)),
            "False" | "false" => Some(Value::Bool(false)),
            "None" | "null" => Some(Value::Null),
            _ => {
                let plain = word.replace('_', "");
                let plain = plain.strip_prefix('+').unwrap_or(&plain);
                let number: Value = serde_json::from_str(plain).ok()?;
                number.is_number().then_some(number)
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest.chars().next()?;
        let triple = quote.to_string().repeat(3);
        let is_triple = self.rest.starts_with(&triple);
        let mark = if is_triple { triple } else { quote.to_string() };
        self.rest = &self.rest[mark.len()..];
        let mut text = String::new();
        loop {
            let c = self.rest.chars().next()?;
            if let Some(after) = self.rest.strip_prefix(mark.as_str())
                && (is_triple || ends_string(after))
            {
                self.rest = after;
                return Some(text);
            }
            self.rest = &self.rest[c.len_utf8()..];
            if c == '\\' { self.escape(&mut text)? } else { text.push(c) }
        }
    }

    fn escape(&mut self, text: &mut String) -> Option<()> {
        let c = self.rest.chars().next()?;
        self.rest = &self.rest[c.len_utf8()..];
        let code = |n: usize| {
            let hex = self.rest.get(..n)?;
            Some((n, char::from_u32(u32::from_str_radix(hex, 16).ok()?)?))
        };
        let decoded = match c {
            'n' => Some((0, '\n')),
            't' => Some((0, '\t')),
            'r' => Some((0, '\r')),
            'b' => Some((0, '\u{8}')),
            'f' => Some((0, '\u{c}')),
            '\\' | '\'' | '"' => Some((0, c)),
            'x' => code(2),
            'u' => code(4),
            'U' => code(8),
            _ => None,
        };
        match decoded {
            Some((n, decoded)) => {
                self.rest = &self.rest[n..];
                text.push(decoded);
            }
            // A line that goes on.
            None if c == '\n' => {}
            // As in Python: an unknown escape stays.
            None => text.extend(['\\', c]),
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn literals_are_pythons() {
        for (text, want) in [
            ("'a'", json!("a")),
            ("\"it's\"", json!("it's")),
            ("'it's'", json!("it's")),
            (r"'a\n\'b\' \x41 é \d'", json!("a\n'b' A é \\d")),
            ("'''two\n'lines' '''", json!("two\n'lines' ")),
            ("-1_000", json!(-1000)),
            ("2.5e3", json!(2500.0)),
            ("[1, 'a', [True, None], ]", json!([1, "a", [true, null]])),
            ("{'a': {'b': (1, 2)}, 'c': []}", json!({"a": {"b": [1, 2]}, "c": []})),
            ("{\"a\": true}", json!({"a": true})),
            ("''", json!("")),
        ] {
            assert_eq!(literal(text), Some(want), "{text}");
        }
        for text in ["Paris", "1 + 2", "f(1)", "'open", "[1", ""] {
            assert_eq!(literal(text), None, "{text}");
        }
    }

    #[test]
    fn arguments_end_at_commas_and_brackets_outside_of_strings() {
        for (text, want) in [
            ("1, b=2)", Some(1)),
            ("'a, b)', c", Some(7)),
            ("[1, (2, 3)])", Some(11)),
            ("{'a': \"}\"})", Some(10)),
            ("'it's, ok')", Some(10)),
            ("'''a', 'b)''' )", Some(14)),
            ("'a", None),
            ("'a'", None),
        ] {
            assert_eq!(ArgumentEnd::default().find(text, false), want, "{text}");
            let mut piecewise = ArgumentEnd::default();
            let ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
            let found = ends.into_iter().find_map(|end| piecewise.find(&text[..end], false));
            assert_eq!(found, want, "{text} in single characters");
        }
    }
}

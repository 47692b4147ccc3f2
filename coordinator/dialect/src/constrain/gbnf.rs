//! llama.cpp's grammars (GBNF) in Lark.
//!
//! A GBNF grammar knows characters only, a Lark grammar words (terminals) that are cut out of the text greedily.
//! So that both accept the same texts, every character becomes a terminal of its own.

use super::grammar::quote;

/// Deepest nesting of groups.
const MAX_DEPTH: usize = 64;

/// Translates a grammar; its rule `root` becomes `start`.
///
/// # Errors
/// The error says what is wrong with the grammar, and in which line.
pub fn to_lark(text: &str) -> Result<String, String> {
    let mut reader = Reader { rest: text, all: text, depth: 0 };
    let mut rules: Vec<String> = Vec::new();
    let mut has_root = false;
    loop {
        reader.space(true);
        if reader.rest.is_empty() {
            break;
        }
        let name = reader.name()?;
        reader.space(false);
        reader.expect("::=")?;
        reader.space(true);
        let body = reader.alternatives()?;
        has_root |= name == "root";
        rules.push(format!("{}: {body}", rule_name(name)));
    }
    if has_root { Ok(rules.join("\n")) } else { Err("there is no rule root".to_string()) }
}

/// GBNF's names have dashes and capitals, which mean something else in Lark.
fn rule_name(name: &str) -> String {
    if name == "root" {
        return "start".to_string();
    }
    let mut lark = "r_".to_string();
    for c in name.chars() {
        match c {
            'a'..='z' | '0'..='9' => lark.push(c),
            'A'..='Z' => lark.extend(['_', 'u', c.to_ascii_lowercase()]),
            '-' => lark.push_str("_d"),
            _ => lark.push_str("__"),
        }
    }
    lark
}

struct Reader<'a> {
    rest: &'a str,
    all: &'a str,
    depth: usize,
}

impl<'a> Reader<'a> {
    fn wrong<T>(&self, what: &str) -> Result<T, String> {
        let at = self.all.len() - self.rest.len();
        let line = self.all[..at].matches('\n').count() + 1;
        Err(format!("line {line}: {what}"))
    }

    /// Skips blanks and comments, and line breaks where a rule cannot end.
    fn space(&mut self, breaks: bool) {
        loop {
            let skipped = |c: char| matches!(c, ' ' | '\t') || (breaks && matches!(c, '\n' | '\r'));
            self.rest = self.rest.trim_start_matches(skipped);
            if !self.rest.starts_with('#') {
                return;
            }
            self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..];
        }
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        match self.rest.strip_prefix(text) {
            Some(rest) => {
                self.rest = rest;
                Ok(())
            }
            None => self.wrong(&format!("{text} is missing")),
        }
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let end = self.rest.find(|c| !is_part(c)).unwrap_or(self.rest.len());
        if end == 0 {
            return self.wrong("a rule's name is missing");
        }
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        Ok(name)
    }

    fn alternatives(&mut self) -> Result<String, String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return self.wrong("groups are nested too deeply");
        }
        let mut all = vec![self.sequence()?];
        while self.rest.starts_with('|') {
            self.rest = &self.rest[1..];
            self.space(true);
            all.push(self.sequence()?);
        }
        self.depth -= 1;
        Ok(all.join(" | "))
    }

    fn sequence(&mut self) -> Result<String, String> {
        let mut items: Vec<String> = Vec::new();
        loop {
            let item = match self.rest.chars().next() {
                Some('"') => self.literal()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.rest = &self.rest[1..];
                    r"/(.|\n)/".to_string()
                }
                Some('(') => {
                    self.rest = &self.rest[1..];
                    self.space(true);
                    let inner = self.alternatives()?;
                    self.space(true);
                    self.expect(")")?;
                    format!("({inner})")
                }
                Some(c) if c.is_ascii_alphanumeric() || c == '_' => rule_name(self.name()?),
                Some('<') => return self.wrong("tokens in a grammar (<...>) are not supported"),
                _ => break,
            };
            let repeated = self.repeated()?;
            items.push(format!("{item}{repeated}"));
            self.space(self.depth > 1);
        }
        Ok(if items.is_empty() { quote("") } else { items.join(" ") })
    }

    /// `*`, `+`, `?` or `{m,n}` behind an item.
    fn repeated(&mut self) -> Result<String, String> {
        match self.rest.chars().next() {
            Some(c @ ('*' | '+' | '?')) => {
                self.rest = &self.rest[1..];
                Ok(c.to_string())
            }
            Some('{') => {
                let Some(end) = self.rest.find('}') else { return self.wrong("} is missing") };
                let (range, rest) = self.rest.split_at(end + 1);
                if !range.chars().all(|c| c.is_ascii_digit() || "{},".contains(c)) {
                    return self.wrong("{m,n} is needed");
                }
                self.rest = rest;
                Ok(range.to_string())
            }
            _ => Ok(String::new()),
        }
    }

    /// A string: a terminal for each character.
    fn literal(&mut self) -> Result<String, String> {
        self.rest = &self.rest[1..];
        let mut items = Vec::new();
        loop {
            match self.rest.chars().next() {
                None | Some('\n') => return self.wrong("a string has no end"),
                Some('"') => {
                    self.rest = &self.rest[1..];
                    break;
                }
                Some(_) => items.push(quote(self.character()?.encode_utf8(&mut [0; 4]))),
            }
        }
        Ok(match items.as_slice() {
            [] => quote(""),
            [one] => one.clone(),
            many => format!("({})", many.join(" ")),
        })
    }

    /// A class of characters, as a regular expression for one.
    fn class(&mut self) -> Result<String, String> {
        self.rest = &self.rest[1..];
        let mut class = String::from("[");
        if let Some(rest) = self.rest.strip_prefix('^') {
            self.rest = rest;
            class.push('^');
        }
        loop {
            match self.rest.chars().next() {
                None | Some('\n') => return self.wrong("a class has no end"),
                Some(']') => {
                    self.rest = &self.rest[1..];
                    break;
                }
                Some(_) => class.push_str(&in_class(self.character()?)),
            }
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.rest = &self.rest[1..];
                class.push('-');
                class.push_str(&in_class(self.character()?));
            }
        }
        match class.as_str() {
            "[" => self.wrong("a class is empty"),
            "[^" => Ok(r"/(.|\n)/".to_string()),
            _ => Ok(format!("/{class}]/")),
        }
    }

    /// One character, which may be escaped.
    fn character(&mut self) -> Result<char, String> {
        let mut chars = self.rest.chars();
        let first = chars.next().unwrap_or('\\');
        if first != '\\' {
            self.rest = chars.as_str();
            return Ok(first);
        }
        let escaped = chars.next();
        let digits = match escaped {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            _ => 0,
        };
        if digits > 0 {
            let code = self.rest.get(2..2 + digits);
            let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
            let Some(c) = code.and_then(char::from_u32) else {
                return self.wrong("an escape is not a character");
            };
            self.rest = &self.rest[2 + digits..];
            return Ok(c);
        }
        let c = match escaped {
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/' | '\'')) => c,
            _ => return self.wrong("an escape is not known"),
        };
        self.rest = &self.rest[2..];
        Ok(c)
    }
}

/// A character as a class of a regular expression has it.
fn in_class(c: char) -> String {
    match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | ' ' | '_' => c.to_string(),
        c if c.is_ascii_punctuation() => format!("\\{c}"),
        c => format!("\\u{{{:x}}}", u32::from(c)),
    }
}

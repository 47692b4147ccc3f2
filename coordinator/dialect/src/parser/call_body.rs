//! The arguments of a tool call whose name has been read.
//!
//! They arrive in pieces, in the notation of the model's dialect, and leave as pieces of JSON text.

use super::call_head::{Body, MAX_HEAD_BYTES};
use super::lexer::{self, Begins, Found, begins, find};
use crate::values::json::{self, Mender};
use crate::values::python::{self, ArgumentEnd};
use crate::values::tools::{self, Tools, Types};
use crate::{Calls, Shape, TaggedShape};

/// The request and the format around a call's arguments.
#[derive(Clone, Copy, Debug)]
pub struct Around<'a> {
    /// The format of calls.
    pub calls: &'a Calls,
    /// The tools of the request.
    pub tools: &'a Tools,
    /// The tool that is called.
    pub name: &'a str,
    /// Whether the text is complete.
    pub ended: bool,
    /// The text was cut off, so what is open stays open.
    pub cut_off: bool,
}

/// The result of reading a stretch of text.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Bytes of the text that are done with.
    pub used: usize,
    /// New text of the arguments.
    pub json: String,
    /// Text between the arguments that belongs to none.
    pub stray: String,
    /// Whether the arguments are complete.
    pub end: bool,
}

/// Arguments that are being read.
#[derive(Clone, Debug)]
pub enum Arguments {
    /// The call has no arguments.
    Empty,
    /// A JSON object, repaired while it is copied.
    Json(Mender),
    /// Text that began as JSON and is passed on unchanged, up to the call's end. The flag: something other than white
    /// space has come.
    Raw(Mender, bool),
    /// Arguments in tags.
    Tags(Tags),
    /// Python's keyword arguments, `KEY=VALUE, ...)`.
    Python(Python),
}

impl Around<'_> {
    /// The JSON of an argument that was written as in Python. What is no literal has the type that the tool asks for.
    fn python_value(&self, key: &str, raw: &str) -> String {
        match python::literal(raw) {
            Some(value) => value.to_string(),
            None => tools::to_json(raw.trim(), self.tools.types(self.name, key)),
        }
    }

    /// Whether a possible beginning of a marker is plain text, because the text is complete. Where the answer was cut
    /// off, it counts as a marker.
    fn decides(&self) -> bool {
        self.ended && !self.cut_off
    }
}

impl Arguments {
    /// A reader for arguments in the notation `body`.
    pub fn new(body: Body) -> Self {
        match body {
            Body::Empty => Self::Empty,
            Body::Json => Self::Json(Mender::default()),
            Body::Tags => Self::Tags(Tags::default()),
            Body::Python => Self::Python(Python::default()),
        }
    }

    /// Reads the next stretch of text.
    pub fn read(&mut self, text: &str, around: Around<'_>) -> Read {
        match self {
            Self::Empty => Read { json: "{}".to_string(), end: true, ..Read::default() },
            Self::Json(mender) => {
                let mut json = String::new();
                match mender.push(text, &mut json) {
                    Ok(used) => {
                        let end = mender.is_done() || around.ended;
                        if end && !mender.is_done() && !around.cut_off {
                            json.extend(mender.completion());
                        }
                        Read { used, json, end, ..Read::default() }
                    }
                    Err((json::Broken, used)) => {
                        *self = Self::Raw(mender.clone(), false);
                        Read { used, json, ..Read::default() }
                    }
                }
            }
            Self::Raw(mender, any) => raw(text, mender, any, around),
            Self::Tags(tags) => match &around.calls.shape {
                Shape::Tagged(shape) => tags.read(text, shape, around),
                _ => Read { end: true, ..Read::default() },
            },
            Self::Python(python) => python.read(text, around),
        }
    }
}

fn raw(text: &str, mender: &Mender, any: &mut bool, around: Around<'_>) -> Read {
    let mut markers = around.calls.closers();
    markers.extend(around.calls.openers());
    let (used, end) = match find(text, &markers, around.decides()) {
        Found::At(at, _) => (at, true),
        Found::NotBefore(at) => (at, around.ended),
    };
    let mut json = text[..used].to_string();
    *any |= !json.trim().is_empty();
    // Brackets that the model forgot before the call's end are closed for it.
    if end
        && !*any
        && !around.cut_off
        && let Some(rest) = mender.completion()
    {
        json = rest;
    }
    Read { used, json, end, ..Read::default() }
}

/// Reads arguments in tags.
#[derive(Clone, Debug, Default)]
pub struct Tags {
    n_read: usize,
    value: Option<TagValue>,
    /// Text that belongs to no argument has come since the last one: white space behind it is part of it.
    strays: bool,
}

#[derive(Clone, Debug)]
struct TagValue {
    types: Option<Types>,
    /// Nothing of the value was read yet.
    fresh: bool,
    /// Text of a value that is no plain string, until it is complete.
    held: String,
}

impl Tags {
    fn read(&mut self, text: &str, shape: &TaggedShape, around: Around<'_>) -> Read {
        let mut read = Read::default();
        loop {
            let rest = &text[read.used..];
            let went_on = match self.value.take() {
                Some(value) => self.value(rest, value, shape, around, &mut read),
                None => self.between(rest, shape, around, &mut read),
            };
            if !went_on || read.end {
                return read;
            }
        }
    }

    /// Reads before an argument, or behind the last one. Whether anything happened.
    fn between(
        &mut self,
        text: &str,
        shape: &TaggedShape,
        around: Around<'_>,
        read: &mut Read,
    ) -> bool {
        let space = lexer::space(text);
        let rest = &text[space..];
        let mut markers = vec![shape.key.open.as_str(), shape.end.as_str()];
        markers.extend(around.calls.closers());
        markers.extend(around.calls.openers());
        let begins = begins(rest, &markers, around.decides());
        let is_end = rest.is_empty() || (begins == Begins::Perhaps && around.cut_off);
        match begins {
            Begins::With(0) => {
                let (before, at) = (std::mem::take(&mut self.strays), read.stray.len());
                let Some(used) = self.key(rest, shape, around, read) else {
                    self.strays = before;
                    if around.ended {
                        self.close(around.cut_off, read, text.len());
                    }
                    return around.ended;
                };
                if before {
                    read.stray.insert_str(at, &text[..space]);
                }
                read.used += space + used;
                true
            }
            Begins::With(which) => {
                if std::mem::take(&mut self.strays) {
                    read.stray.push_str(&text[..space]);
                }
                let used = if which == 1 { shape.end.len() } else { 0 };
                self.close(around.cut_off, read, space + used);
                true
            }
            Begins::Perhaps | Begins::No if is_end => {
                if around.ended {
                    self.close(around.cut_off, read, text.len());
                }
                around.ended
            }
            Begins::Perhaps => false,
            Begins::No => {
                let stray = match find(rest, &markers, around.decides()) {
                    Found::At(at, _) | Found::NotBefore(at) => at,
                };
                let begin = if self.strays { 0 } else { space };
                self.strays = true;
                read.stray.push_str(&text[begin..space + stray]);
                read.used += space + stray;
                true
            }
        }
    }

    fn close(&mut self, cut_off: bool, read: &mut Read, used: usize) {
        read.used += used;
        read.end = true;
        match (cut_off, self.n_read) {
            (true, _) => {}
            (false, 0) => read.json.push_str("{}"),
            (false, _) => read.json.push('}'),
        }
    }

    /// Reads an argument's key; its length, if it is complete.
    fn key(
        &mut self,
        text: &str,
        shape: &TaggedShape,
        around: Around<'_>,
        read: &mut Read,
    ) -> Option<usize> {
        let mut at = shape.key.open.len();
        let Found::At(end, _) = find(&text[at..], &[&shape.key.close], around.decides()) else {
            return self.no_key(text, read);
        };
        let key = text[at..at + end].trim();
        at += end + shape.key.close.len();
        let mut attributes = "";
        if let Some(tag_end) = &shape.tag_end {
            let Found::At(end, _) = find(&text[at..], &[tag_end], around.decides()) else {
                return self.no_key(text, read);
            };
            attributes = &text[at..at + end];
            at += end + tag_end.len();
        }
        if !shape.value.open.is_empty() {
            at += lexer::space(&text[at..]);
            match begins(&text[at..], &[&shape.value.open], around.decides()) {
                Begins::With(_) => at += shape.value.open.len(),
                Begins::Perhaps => return None,
                Begins::No if text[at..].is_empty() => return None,
                // The tag was forgotten.
                Begins::No => {}
            }
        }
        let key = if shape.tag_end.is_some() { unescape(key) } else { key.to_string() };
        let types = tools::types_of_attributes(attributes)
            .or_else(|| around.tools.types(around.name, &key));
        read.json.push_str(if self.n_read == 0 { "{\"" } else { ", \"" });
        json::escape(&key, &mut read.json);
        read.json.push_str("\": ");
        self.n_read += 1;
        self.value = Some(TagValue { types, fresh: true, held: String::new() });
        Some(at)
    }

    /// A key that does not end is no key.
    fn no_key(&mut self, text: &str, read: &mut Read) -> Option<usize> {
        if text.len() <= MAX_HEAD_BYTES {
            return None;
        }
        let used = lexer::at_most(text, MAX_HEAD_BYTES).len();
        read.stray.push_str(&text[..used]);
        self.strays = true;
        Some(used)
    }

    /// Reads within a value. Returns whether the value is complete.
    fn value(
        &mut self,
        text: &str,
        mut value: TagValue,
        shape: &TaggedShape,
        around: Around<'_>,
        read: &mut Read,
    ) -> bool {
        let is_string = value.types.is_some_and(Types::is_string);
        let mut text = text;
        if value.fresh {
            if text.is_empty() && !around.ended {
                self.value = Some(value);
                return false;
            }
            value.fresh = false;
            if is_string {
                read.json.push('"');
            }
            if shape.padded && text.starts_with('\n') {
                text = &text[1..];
                read.used += 1;
            }
        }
        let (sure, end) = value_end(text, shape, around);
        if is_string {
            json::escape(&text[..sure], &mut read.json);
        } else {
            value.held.push_str(&text[..sure]);
        }
        let Some(end) = end else {
            read.used += sure;
            self.value = Some(value);
            if around.ended {
                read.used += text.len() - sure;
                read.end = true;
            }
            return around.ended;
        };
        read.used += end;
        if is_string {
            read.json.push('"');
        } else {
            read.json.push_str(&tools::to_json(&value.held, value.types));
        }
        true
    }
}

/// How much of `text` belongs to a value for certain, and the place behind the value's end, if it is there.
fn value_end(text: &str, shape: &TaggedShape, around: Around<'_>) -> (usize, Option<usize>) {
    let without_break = |end: usize| {
        if shape.padded && text[..end].ends_with('\n') { end - 1 } else { end }
    };
    let mut from = 0;
    loop {
        let at = match find(&text[from..], &[&shape.value.close], around.decides()) {
            Found::At(at, _) => from + at,
            Found::NotBefore(at) if around.decides() => {
                return (without_break(from + at), Some(text.len()));
            }
            Found::NotBefore(at) => return (without_break(from + at), None),
        };
        // The closing tag may be part of the value, as in a file that is written: it counts where the
        // next argument or the call's end follows.
        let behind = at + shape.value.close.len();
        let after = text[behind..].trim_start();
        let mut next = vec![shape.key.open.as_str(), shape.end.as_str()];
        next.extend(around.calls.closers());
        next.extend(around.calls.openers());
        match begins(after, &next, around.decides()) {
            Begins::With(_) => return (without_break(at), Some(behind)),
            Begins::No if after.is_empty() && around.decides() => {
                return (without_break(at), Some(behind));
            }
            Begins::No if !after.is_empty() => from = behind,
            _ => return (without_break(at), None),
        }
    }
}

fn unescape(text: &str) -> String {
    text.replace("&quot;", "\"").replace("&amp;", "&")
}

/// Arguments as in Python.
#[derive(Clone, Debug, Default)]
pub struct Python {
    n_read: usize,
    key: Option<(String, ArgumentEnd)>,
}

impl Python {
    fn read(&mut self, text: &str, around: Around<'_>) -> Read {
        let mut read = Read::default();
        loop {
            let rest = &text[read.used..];
            if let Some((key, mut end)) = self.key.take() {
                match end.find(rest, around.ended) {
                    Some(at) => {
                        let value = around.python_value(&key, &rest[..at]);
                        self.argument(&key, &value, at, &mut read);
                    }
                    None if around.ended && !around.cut_off => {
                        let value = around.python_value(&key, rest);
                        self.argument(&key, &value, rest.len(), &mut read);
                    }
                    None => {
                        self.key = Some((key, end));
                        if around.ended {
                            read.used = text.len();
                            read.end = true;
                        }
                        return read;
                    }
                }
                continue;
            }
            let at = rest.len() - rest.trim_start_matches([' ', '\n', '\t', '\r', ',']).len();
            let argument = &rest[at..];
            let is_end = argument.starts_with(')');
            if is_end || (argument.is_empty() && around.ended) {
                read.used += at + usize::from(is_end);
                read.end = true;
                if is_end || !around.cut_off {
                    read.json.push_str(if self.n_read == 0 { "{}" } else { "}" });
                }
                return read;
            }
            let Some((key, used)) = self.argument_key(argument, around) else { return read };
            read.used += at + used;
            self.key = Some((key, ArgumentEnd::default()));
        }
    }

    /// The argument's name and its length with the equals sign.
    fn argument_key(&self, text: &str, around: Around<'_>) -> Option<(String, usize)> {
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        let n = text.find(|c: char| !is_word(c)).unwrap_or(text.len());
        let after = &text[n..];
        let sign = after.trim_start();
        if n > 0 && sign.starts_with('=') {
            return Some((text[..n].to_string(), n + after.len() - sign.len() + 1));
        }
        if sign.is_empty() && !around.ended {
            return None;
        }
        let by_schema = around.tools.key_at(around.name, self.n_read).map(str::to_string);
        Some((by_schema.unwrap_or_else(|| format!("arg{}", self.n_read)), 0))
    }

    fn argument(&mut self, key: &str, value: &str, used: usize, read: &mut Read) {
        read.used += used;
        read.json.push_str(if self.n_read == 0 { "{\"" } else { ", \"" });
        json::escape(key, &mut read.json);
        read.json.push_str("\": ");
        self.n_read += 1;
        read.json.push_str(value);
    }
}

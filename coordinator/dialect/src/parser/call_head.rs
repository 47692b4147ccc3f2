//! Decides whether a text begins with a tool call, up to where the call's arguments begin.
//!
//! Nothing is taken from the text. Where the text so far does not tell, the same question is asked again when more is there.
//! The answer depends on the text so far, on whether more follows, and on the request's tools. It does not depend on what was asked
//! before.
//!
//! A call has one of these forms, of which a [`Shape`] has the details:
//!
//! ```text
//! Json     {"name": "f", "arguments": {..}}          also {"f": {..}}, where the name is the key
//! Named    f<SEPARATOR>{..}                          also f<ID>call_1<SEPARATOR>{..}
//! Tagged   <function=f><parameter=a>1</parameter>    also f, then tags
//! Python   f(a=1)
//! ```
//!
//! Most formats put a marker before a call. A **bare** call has none, so that plain text may look like one. A **closer** is a
//! marker behind the arguments.

use super::lexer::{self, Begins, Found, begins_so_far, find, find_so_far};
use crate::values::tools::Tools;
use crate::{Calls, JsonShape, NamedShape, Shape, TaggedShape};

/// Limit of the beginning of a call, up to its arguments. A longer beginning is no call.
pub const MAX_HEAD_BYTES: usize = 4096;

/// The decision about the beginning of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// More text is needed.
    More,
    /// The text does not begin with a call.
    No,
    /// A call; its arguments begin `used` bytes further.
    Call(Called),
    /// A call whose parts stand in an order that can be read only when it is complete.
    Whole,
    /// Plain text follows after so many bytes.
    Plain(usize),
}

/// A call whose name is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// The tool's name.
    pub name: String,
    /// The id that the model gave.
    pub id: Option<String>,
    /// Bytes of the head.
    pub used: usize,
    /// How its arguments are written.
    pub body: Body,
}

/// The notation of a call's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The call has no arguments.
    Empty,
    /// A JSON object.
    Json,
    /// Arguments in tags.
    Tags,
    /// Python's keyword arguments, `KEY=VALUE, ...)`.
    Python,
}

/// The request and the format by which a call's beginning is judged.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The format of calls.
    pub calls: &'a Calls,
    /// The tools of the request.
    pub tools: &'a Tools,
    /// Whether only names of these tools count.
    pub known_only: bool,
    /// Whether the text is complete.
    pub ended: bool,
}

/// Judges `text`, which stands where a call may begin.
pub fn read(text: &str, context: Context<'_>) -> Head {
    let is_long = text.len() > MAX_HEAD_BYTES;
    let text = lexer::at_most(text, MAX_HEAD_BYTES);
    let context = Context { ended: context.ended && !is_long, ..context };
    let head = match &context.calls.shape {
        Shape::Json(shape) => json(text, shape, context),
        Shape::Named(shape) => named(text, shape, context.calls),
        Shape::Tagged(shape) => tagged(text, shape, context),
        Shape::Python => python(text, context),
    };
    // Where a marker stood before the call, a model may write it as JSON, even if its template has another form.
    let head = match head {
        Head::No if !matches!(context.calls.shape, Shape::Json(_)) && !context.calls.bare => {
            json(text, &JsonShape::default(), context)
        }
        head => head,
    };
    match head {
        Head::More if is_long => Head::No,
        Head::Call(called) if context.known_only && context.tools.get(&called.name).is_none() => {
            Head::No
        }
        head => head,
    }
}

/// Reads the keys of an object up to its arguments.
fn json(text: &str, shape: &JsonShape, context: Context<'_>) -> Head {
    let space = lexer::space(text);
    match text[space..].chars().next() {
        None => return Head::More,
        Some('{') if shape.id_last => return Head::Whole,
        Some('{') => {}
        Some(_) => return Head::No,
    }
    let mut object = Object { at: space + 1, name: None, id: None };
    loop {
        if let Some(head) = object.field(text, shape, context) {
            return head;
        }
    }
}

/// An object that may be a call: what was read of it, and where.
struct Object {
    at: usize,
    name: Option<String>,
    id: Option<String>,
}

impl Object {
    /// Reads one field; the answer, if there is one.
    fn field(&mut self, text: &str, shape: &JsonShape, context: Context<'_>) -> Option<Head> {
        self.at += lexer::space(&text[self.at..]);
        let rest = &text[self.at..];
        match rest.chars().next() {
            None => return Some(Head::More),
            Some('}') => {
                let Some(name) = self.name.take() else { return Some(Head::No) };
                return Some(call(name, self.id.take(), self.at, Body::Empty));
            }
            Some(',') => {
                self.at += 1;
                return None;
            }
            Some(_) => {}
        }
        let key = match string(rest) {
            Part::Is(key, used) => {
                self.at += used;
                key
            }
            Part::Open => return Some(Head::More),
            Part::Bad => return Some(Head::No),
        };
        self.at += lexer::space(&text[self.at..]);
        match text[self.at..].chars().next() {
            None => return Some(Head::More),
            Some(':') => self.at += 1,
            Some(_) => return Some(Head::No),
        }
        self.at += lexer::space(&text[self.at..]);
        match text[self.at..].chars().next() {
            None => Some(Head::More),
            Some(first) => self.value(&key, first, &text[self.at..], shape, context),
        }
    }

    /// Reads the value of `key`, which begins with `first`; the answer, if there is one.
    fn value(
        &mut self,
        key: &str,
        first: char,
        value: &str,
        shape: &JsonShape,
        context: Context<'_>,
    ) -> Option<Head> {
        match key {
            _ if shape.name_is_key && first == '{' && lexer::is_name(key) => {
                Some(call(key.to_string(), None, self.at, Body::Json))
            }
            // `{"function": {"name": "f", ..}}`: the fields are one level further in.
            "function" if first == '{' => {
                self.at += 1;
                None
            }
            "name" | "tool_name" | "function" | "recipient_name" => self.tool_name(value, context),
            "arguments" | "parameters" | "args" | "input" => {
                Some(match self.name.take().filter(|_| first == '{') {
                    Some(name) => call(name, self.id.take(), self.at, Body::Json),
                    None => Head::Whole,
                })
            }
            // An object without a marker and with another field is an answer in JSON, and no call.
            _ if context.calls.bare && key != "type" && !is_id(key) => Some(Head::No),
            _ if matches!(first, '{' | '[') => Some(Head::Whole),
            _ => self.other_field(key, value),
        }
    }

    /// Reads the tool's name; the answer, if there is one.
    fn tool_name(&mut self, value: &str, context: Context<'_>) -> Option<Head> {
        let is_unknown = |name: &str| context.known_only && context.tools.get(name).is_none();
        match string(value) {
            Part::Is(name, _) if !lexer::is_name(&name) || is_unknown(&name) => Some(Head::No),
            Part::Is(name, used) => {
                self.name = Some(name);
                self.at += used;
                None
            }
            Part::Open => Some(Head::More),
            Part::Bad => Some(Head::No),
        }
    }

    /// Reads a field that is neither name nor arguments, of which an id is kept; the answer, if there is one.
    fn other_field(&mut self, key: &str, value: &str) -> Option<Head> {
        match scalar(value) {
            Part::Is(text, used) => {
                if is_id(key) {
                    self.id = Some(text).filter(|id| !id.is_empty());
                }
                self.at += used;
                None
            }
            Part::Open => Some(Head::More),
            Part::Bad => Some(Head::No),
        }
    }
}

/// Whether a field of this name has the call's id.
fn is_id(key: &str) -> bool {
    matches!(key, "id" | "tool_call_id" | "call_id")
}

fn call(name: String, id: Option<String>, used: usize, body: Body) -> Head {
    Head::Call(Called { name, id, used, body })
}

/// A part at the beginning of a text.
enum Part {
    /// The part is this text, so many bytes long.
    Is(String, usize),
    /// The part is not complete.
    Open,
    /// The text is something else.
    Bad,
}

/// Reads a string in quotes.
fn string(text: &str) -> Part {
    let Some(inner) = text.strip_prefix('"') else { return Part::Bad };
    let mut escaped = false;
    for (at, byte) in inner.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => {
                let used = at + 2;
                return match serde_json::from_str(&text[..used]) {
                    Ok(string) => Part::Is(string, used),
                    Err(_) => Part::Bad,
                };
            }
            _ => {}
        }
    }
    Part::Open
}

/// A string or a word.
fn scalar(text: &str) -> Part {
    if text.starts_with('"') {
        return string(text);
    }
    match text.find([',', '}', ']', '\n']) {
        Some(end) => Part::Is(text[..end].trim().to_string(), end),
        None => Part::Open,
    }
}

/// Reads a name, and perhaps an id, up to where a JSON object begins.
fn named(text: &str, shape: &NamedShape, calls: &Calls) -> Head {
    let mut at = lexer::space(text);
    if !shape.prefix.is_empty() {
        match begins_so_far(&text[at..], &[&shape.prefix]) {
            Begins::Perhaps => return Head::More,
            Begins::With(_) => at += shape.prefix.len(),
            // Some templates write the prefix once, some models leave it out.
            Begins::No => {}
        }
    }
    let rest = &text[at..];
    // The name ends at the separator, or at the marker of an id, which then ends at the separator.
    let mut separators = vec![shape.separator.as_str()];
    separators.extend(shape.id.as_deref());
    let (end, which) = match find_so_far(rest, &separators) {
        Found::At(end, which) => (end, which),
        Found::NotBefore(sure) if is_start(&rest[..sure]) => return Head::More,
        Found::NotBefore(_) => return Head::No,
    };
    let header = rest[..end].trim();
    at += end + separators[which].len();
    if shape.plain.as_deref() == Some(header) {
        return Head::Plain(at);
    }
    let (name, mut id) = if shape.name_is_id { kimi_name(header) } else { (header, None) };
    if !lexer::is_name(name) {
        return Head::No;
    }
    let has_id = which == 1;
    if has_id {
        let rest = &text[at..];
        let Found::At(end, _) = find_so_far(rest, &[&shape.separator]) else { return Head::More };
        id = Some(rest[..end].trim().to_string()).filter(|id| !id.is_empty());
        at += end + shape.separator.len();
    }
    let name = name.to_string();
    let space = lexer::space(&text[at..]);
    let closers = calls.closers();
    match text[at + space..].chars().next() {
        None => Head::More,
        Some('{') => call(name, id, at + space, Body::Json),
        // Nothing between the markers: no arguments.
        _ => match begins_so_far(&text[at + space..], &closers) {
            Begins::With(_) => call(name, id, at, Body::Empty),
            Begins::Perhaps => Head::More,
            Begins::No => Head::No,
        },
    }
}

/// `functions.NAME:NUMBER` as name and id; anything else is a name alone.
pub fn kimi_name(header: &str) -> (&str, Option<String>) {
    let bare = header.strip_prefix("functions.").unwrap_or(header);
    match bare.rsplit_once(':') {
        Some((name, number))
            if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) =>
        {
            (name, Some(header.to_string()))
        }
        _ => (bare, None),
    }
}

/// Whether `text` is a name or may become one.
fn is_start(text: &str) -> bool {
    let text = text.trim();
    text.is_empty() || lexer::is_name(text)
}

/// Reads a name up to where tags with arguments begin.
fn tagged(text: &str, shape: &TaggedShape, context: Context<'_>) -> Head {
    let mut at = lexer::space(text);
    if !shape.name.open.is_empty() {
        match begins_so_far(&text[at..], &[&shape.name.open]) {
            Begins::Perhaps => return Head::More,
            Begins::No => return Head::No,
            Begins::With(_) => at += shape.name.open.len(),
        }
    }
    let rest = &text[at..];
    if shape.name.close.is_empty() {
        return word_before_tags(rest, at, shape, context);
    }
    let end = match find_so_far(rest, &[&shape.name.close]) {
        Found::At(end, _) => end,
        Found::NotBefore(sure) if is_start(&rest[..sure]) => return Head::More,
        Found::NotBefore(_) => return Head::No,
    };
    let name = rest[..end].trim();
    if !lexer::is_name(name) {
        return Head::No;
    }
    at += end + shape.name.close.len();
    if let Some(tag_end) = &shape.tag_end {
        match find_so_far(&text[at..], &[tag_end]) {
            Found::At(end, _) => at += end + tag_end.len(),
            Found::NotBefore(_) => return Head::More,
        }
    }
    call(name.to_string(), None, at, Body::Tags)
}

/// GLM's form: the name stands alone before the first tag.
fn word_before_tags(rest: &str, at: usize, shape: &TaggedShape, context: Context<'_>) -> Head {
    let mut stops = vec![shape.key.open.as_str(), "\n"];
    stops.extend(context.calls.closers());
    let before = lexer::space(rest);
    let at = at + before;
    let rest = &rest[before..];
    // A closer may begin with the line's end. Then only the text's end tells which of both it is.
    match find(rest, &stops, context.ended) {
        Found::At(end, _) if lexer::is_name(rest[..end].trim()) => {
            call(rest[..end].trim().to_string(), None, at + end, Body::Tags)
        }
        Found::NotBefore(sure) if is_start(&rest[..sure]) => Head::More,
        _ => Head::No,
    }
}

/// Reads a name up to the parenthesis behind it.
fn python(text: &str, context: Context<'_>) -> Head {
    let before = lexer::space(text);
    let rest = &text[before..];
    let Some(open) = rest.find('(') else {
        let could_be = !rest.contains(char::is_whitespace) && is_start(rest);
        return if could_be { Head::More } else { Head::No };
    };
    let name = &rest[..open];
    if !lexer::is_name(name) || (context.known_only && context.tools.get(name).is_none()) {
        return Head::No;
    }
    // `f(x) is ...` in prose is no call: an argument has a name, unless the tool is one of the request's.
    let inside = &rest[open + 1..];
    let key = inside.trim_start();
    let n_key = key.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(key.len());
    match key[n_key..].trim_start().chars().next() {
        None => Head::More,
        Some('=') if n_key > 0 => call(name.to_string(), None, before + open + 1, Body::Python),
        Some(')') if n_key == 0 => call(name.to_string(), None, before + open + 1, Body::Python),
        Some(_) if context.tools.get(name).is_some() => {
            call(name.to_string(), None, before + open + 1, Body::Python)
        }
        Some(_) => Head::No,
    }
}

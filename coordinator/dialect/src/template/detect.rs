//! Finds the dialect of a chat template. Formats with a known marker come first ([`known`]). For all other templates
//! the dialect is derived from rendered probes.

use brigade_text::ChatTemplate;
use serde_json::Value;

use super::known;
use super::probe::{
    self, FIRST, FIRST_ID, Facts, KEY, SECOND, VALUE, common_prefix, common_suffix,
};
use crate::values::json::Scan;
use crate::{Calls, Dialect, Ids, JsonShape, NamedShape, Pair, Shape, TaggedShape, TypedBy};

/// The dialect of a template, and what the template does with calls of earlier answers. A model whose template
/// knows of no tools gets the most common form, which it is then told to write.
pub fn detect(template: &ChatTemplate) -> (Dialect, Facts) {
    let facts = probe::facts(template);
    let mut dialect = known::find(template).unwrap_or_default();
    if dialect.reasoning.is_none() && !dialect.channels {
        let (pair, silent) = reasoning(&facts);
        dialect.reasoning = pair.or_else(|| known::reasoning(template));
        dialect.silent.extend(silent);
    }
    if dialect.calls.is_none() && !dialect.channels {
        let calls = calls(&facts).or_else(|| known::mentioned(template));
        dialect.calls = Some(calls.unwrap_or_else(known::hermes));
    }
    if let Some(calls) = &mut dialect.calls
        && known::wants_nine(template)
    {
        calls.ids = Ids::Nine;
    }
    known::complete(template, &mut dialect);
    (dialect, facts)
}

/// The markers around reasoning, and those around the content behind it.
fn reasoning(facts: &Facts) -> (Option<Pair>, Vec<String>) {
    let Some([before, middle, after]) = &facts.reasoning else { return (None, Vec::new()) };
    let open = before.trim_end();
    let open = open.rfind(['<', '[', '◁']).map(|at| &open[at..]).filter(|tag| is_tag(tag));
    let (close, rest) = first_tag(middle.trim_start());
    let (Some(open), Some(close)) = (open, close) else { return (None, Vec::new()) };
    let mut silent = Vec::new();
    if let (Some(around), _) = first_tag(rest.trim_start()) {
        silent.push(around.to_string());
        silent.extend(first_tag(after.trim_start()).0.map(str::to_string));
    }
    (Some(Pair::new(open, close)), silent)
}

fn is_tag(text: &str) -> bool {
    first_tag(text).0 == Some(text)
}

/// The tag that `text` begins with, and the rest.
fn first_tag(text: &str) -> (Option<&str>, &str) {
    let end = match text.chars().next() {
        Some('<') => '>',
        Some('[') => ']',
        Some('◁') => '▷',
        _ => return (None, text),
    };
    match text.find(end) {
        Some(at) => {
            let (tag, rest) = text.split_at(at + end.len_utf8());
            (Some(tag), rest)
        }
        None => (None, text),
    }
}

/// The form of calls that the probes show.
pub fn calls(facts: &Facts) -> Option<Calls> {
    let one = facts.one.as_deref()?;
    let two = facts.two.as_deref();
    json(one, two).or_else(|| python(one, two)).or_else(|| tagged(one, two))
}

/// A part of a text, by places.
type Span = (usize, usize);

/// Splits the text around two calls into the text around each and the text around both.
fn wrap(one: &str, span: Span, two: Option<(&str, Span, Span)>) -> (Option<Pair>, Option<Pair>) {
    let strip =
        |text: &str| text.trim().trim_end_matches('[').trim_start_matches(']').trim().to_string();
    let pair = |open: &str, close: &str| {
        let (open, close) = (strip(open), strip(close));
        (!open.is_empty()).then_some(Pair { open, close })
    };
    let Some((two, a, b)) = two else {
        return (None, pair(&one[..span.0], &one[span.1..]));
    };
    let (before, middle, after) = (&two[..a.0], &two[a.1..b.0], &two[b.1..]);
    let shared = &before[before.len() - common_suffix(before, middle)..];
    // The common part of two texts may begin in the middle of a tag.
    let open = shared.find(['<', '[']).map_or("", |at| &shared[at..]);
    let open = if strip(open).is_empty() { "" } else { open };
    let shared = &middle[..common_prefix(middle, after)];
    let close = shared.rfind(['>', ']', '`']).map_or("", |at| &shared[..=at]);
    let close = if strip(close).is_empty() { "" } else { close };
    // The end of the turn may stand behind it.
    let end = strip(&after[close.len()..]);
    let end = first_tag(&end).0.unwrap_or(&end);
    let section = pair(&before[..before.len() - open.len()], end);
    (section, pair(open, close))
}

fn json(one: &str, two: Option<&str>) -> Option<Calls> {
    let (span, kind) = object(one, FIRST)?;
    let two = two.and_then(|two| {
        let (a, _) = object(two, FIRST)?;
        let (b, _) = object(&two[a.1..], SECOND)?;
        Some((two, a, (a.1 + b.0, a.1 + b.1)))
    });
    match kind {
        Object::Call(mut shape) => {
            shape.list = one[..span.0].trim_end().ends_with('[');
            let (section, call) = wrap(one, span, two);
            let bare = section.is_none() && call.is_none();
            Some(Calls { section, call, bare, shape: Shape::Json(shape), ids: Ids::Long })
        }
        Object::Arguments => named(one, span, two),
    }
}

enum Object {
    /// The object is a whole call.
    Call(JsonShape),
    /// The object has a call's arguments alone.
    Arguments,
}

/// The object in `text` that is a call of `name`, or arguments behind that name.
fn object(text: &str, name: &str) -> Option<(Span, Object)> {
    for (at, _) in text.match_indices('{') {
        let Some(length) = Scan::default().end(&text[at..]) else { continue };
        let Ok(value) = serde_json::from_str::<Value>(&text[at..at + length]) else { continue };
        let span = (at, at + length);
        if let Some(shape) = call_shape(&value, name) {
            return Some((span, Object::Call(shape)));
        }
        if value.get(KEY).is_some() && text[..at].contains(name) {
            return Some((span, Object::Arguments));
        }
    }
    None
}

fn call_shape(value: &Value, name: &str) -> Option<JsonShape> {
    let object = value.as_object()?;
    if object.get(name).is_some_and(|arguments| arguments.get(KEY).is_some()) {
        return Some(JsonShape { name_is_key: true, ..JsonShape::default() });
    }
    if let Some(inner) = object.get("function").filter(|inner| inner.is_object()) {
        return call_shape(inner, name);
    }
    let place = |fits: &dyn Fn(&Value) -> bool| object.iter().position(|(_, value)| fits(value));
    let key = |at: usize| object.keys().nth(at).cloned().unwrap_or_default();
    let name_at = place(&|value| value == name)?;
    let arguments_at = place(&|value| {
        value.get(KEY).is_some() || value.as_str().is_some_and(|text| text.contains(KEY))
    })?;
    let id_at = place(&|value| value.as_str().is_some_and(|id| id.starts_with("probeid")));
    Some(JsonShape {
        name: key(name_at),
        arguments: key(arguments_at),
        name_is_key: false,
        id_last: id_at.is_some_and(|at| at > arguments_at),
        list: false,
    })
}

/// `NAME SEPARATOR {...}`: `span` is the object's.
fn named(one: &str, span: Span, two: Option<(&str, Span, Span)>) -> Option<Calls> {
    let name_at = one[..span.0].rfind(FIRST)?;
    let between = one[name_at + FIRST.len()..span.0].trim();
    let (id, separator) = match between.split_once(FIRST_ID) {
        Some((id, separator)) => (Some(id.trim().to_string()), separator.trim()),
        None => (None, between),
    };
    let two = two.and_then(|(two, a, b)| {
        let first = two[..a.0].rfind(FIRST)?;
        let second = two[..b.0].rfind(SECOND)?;
        Some((two, (first, a.1), (second, b.1)))
    });
    let (section, call) = wrap(one, (name_at, span.1), two);
    let mut shape = NamedShape { id, separator: separator.to_string(), ..NamedShape::default() };
    let (mut call, section) = (call?, section);
    // A tag that is open where the name stands is the name's own.
    if let Some(at) = open_tag(&call.open) {
        shape.prefix = call.open.split_off(at);
        shape.suffix = std::mem::take(&mut call.close);
        call.open = call.open.trim_end().to_string();
    }
    let call = (!call.open.is_empty()).then_some(call);
    if shape.separator.is_empty() {
        return None;
    }
    Some(Calls { section, call, bare: false, shape: Shape::Named(shape), ids: Ids::Long })
}

/// Where a tag begins that does not end in `text`.
fn open_tag(text: &str) -> Option<usize> {
    text.rfind('<').filter(|at| !text[*at..].contains('>'))
}

fn python(one: &str, two: Option<&str>) -> Option<Calls> {
    let span = python_call(one, FIRST)?;
    let two = two.and_then(|two| {
        let a = python_call(two, FIRST)?;
        let b = python_call(two, SECOND)?;
        (a.1 <= b.0).then_some((two, a, b))
    });
    let (section, call) = wrap(one, span, two);
    let bare = section.is_none() && call.is_none();
    Some(Calls { section, call, bare, shape: Shape::Python, ids: Ids::Long })
}

fn python_call(text: &str, name: &str) -> Option<Span> {
    let at = text.find(&format!("{name}({KEY}="))?;
    let value = at + text[at..].find(VALUE)? + VALUE.len();
    Some((at, value + text[value..].find(')')? + 1))
}

fn tagged(one: &str, two: Option<&str>) -> Option<Calls> {
    let name_at = one.find(FIRST)?;
    let key_at = name_at + one[name_at..].find(KEY)?;
    let value_at = key_at + one[key_at..].find(VALUE)?;
    let name_to_key = &one[name_at + FIRST.len()..key_at];
    let key_to_value = &one[key_at + KEY.len()..value_at];
    let behind = one[value_at + VALUE.len()..].trim_start();
    let tag_end = |text: &str| text.find('>').map(|at| at + 1);
    let key_open = &name_to_key[name_to_key.rfind('<')?..];
    let (key_close, rest) = key_to_value.split_at(tag_end(key_to_value)?);
    let value_open = rest.trim();
    let (value_close, _) = behind.split_at(tag_end(behind)?);
    let two = two.and_then(|two| {
        let a = two.find(FIRST)?;
        let a_end = a + two[a..].find(VALUE)? + VALUE.len();
        let b = a_end + two[a_end..].find(SECOND)?;
        let b_end = b + two[b..].find(VALUE)? + VALUE.len();
        Some((two, (a, a_end), (b, b_end)))
    });
    let (section, call) = wrap(one, (name_at, value_at + VALUE.len()), two);
    let mut call = call?;
    let mut name = Pair::default();
    if let Some(at) = open_tag(&call.open) {
        name.open = call.open.split_off(at);
        name.close = name_to_key[..tag_end(name_to_key)?].to_string();
        call.open = call.open.trim_end().to_string();
    }
    // Behind the value: its own closing tag, the tag that ends the call, what closes the call's marker.
    let rest = call.close.trim_start().strip_prefix(value_close).unwrap_or(&call.close).trim();
    let (end, close) = if call.open.is_empty() {
        (rest, "")
    } else {
        let at = rest.rfind('<').unwrap_or(0);
        (rest[..at].trim(), &rest[at..])
    };
    let (end, close) = (end.to_string(), close.to_string());
    call.close = close;
    let shape = TaggedShape {
        name,
        end,
        key: Pair::new(key_open, key_close),
        value: Pair::new(value_open, value_close),
        tag_end: None,
        typed_by: TypedBy::Nothing,
        padded: value_open.is_empty() && rest_has_break(key_to_value),
    };
    let call = (!call.open.is_empty()).then_some(call);
    Some(Calls { section, call, bare: false, shape: Shape::Tagged(shape), ids: Ids::Long })
}

fn rest_has_break(key_to_value: &str) -> bool {
    key_to_value.ends_with('\n')
}

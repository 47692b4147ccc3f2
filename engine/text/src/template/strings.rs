//! Methods of Python's strings that the engine does not have, or has without some of their arguments. Places are
//! counted in characters, as Python does.

use minijinja::formatting::{FormatStyle, format};
use minijinja::value::{Kwargs, Tuple, Value, ValueKind, from_args};
use minijinja::{Error, ErrorKind};

/// Calls a method of a text; `None`: it is none of these.
pub fn method(text: &str, name: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    Some(match name {
        "removeprefix" => one(args).map(|p: String| text.strip_prefix(&p).unwrap_or(text).into()),
        "removesuffix" => one(args).map(|p: String| text.strip_suffix(&p).unwrap_or(text).into()),
        "partition" | "rpartition" => partition(text, name == "rpartition", args),
        "split" | "rsplit" => split(text, name == "rsplit", args),
        "splitlines" => lines(text, args),
        "find" | "rfind" | "index" | "rindex" | "count" => place(text, name, args),
        "startswith" | "endswith" if args.len() > 1 => edge(text, name, args),
        "center" | "ljust" | "rjust" => justify(text, name, args),
        "zfill" => one(args).map(|width: usize| zfill(text, width).into()),
        "expandtabs" => {
            from_args::<(Option<usize>,)>(args).map(|(n,)| expanded(text, n.unwrap_or(8)).into())
        }
        "swapcase" => {
            none(args).map(|()| text.chars().flat_map(swapped).collect::<String>().into())
        }
        "casefold" => none(args).map(|()| text.to_lowercase().replace('ß', "ss").into()),
        "title" => none(args).map(|()| title(text).into()),
        "istitle" => none(args)
            .map(|()| (title(text) == text && text.chars().any(char::is_alphabetic)).into()),
        "isdecimal" => none(args)
            .map(|()| (!text.is_empty() && text.chars().all(|c| c.is_ascii_digit())).into()),
        "isidentifier" => none(args).map(|()| is_identifier(text).into()),
        "isprintable" => none(args).map(|()| (!text.chars().any(char::is_control)).into()),
        _ => return None,
    })
}

/// `text % value`, as Python formats: a tuple has a value for each place, anything else is one value.
///
/// # Errors
/// There are too few values, or of the wrong kind.
pub fn percent(text: &str, value: &Value) -> Result<String, Error> {
    match value.downcast_object_ref::<Tuple>() {
        Some(_) => {
            let values: Vec<Value> = value.try_iter()?.collect();
            format(FormatStyle::Printf, text, &values)
        }
        None => format(FormatStyle::Printf, text, std::slice::from_ref(value)),
    }
}

fn bad(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

fn none(args: &[Value]) -> Result<(), Error> {
    from_args::<()>(args)
}

fn one<T>(args: &[Value]) -> Result<T, Error>
where
    for<'a> T: minijinja::value::ArgType<'a, Output = T>,
{
    from_args::<(T,)>(args).map(|(arg,)| arg)
}

fn partition(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let separator: String = one(args)?;
    if separator.is_empty() {
        return Err(bad("empty separator"));
    }
    let found = if from_end { text.rfind(&separator) } else { text.find(&separator) };
    let parts = match found {
        Some(at) => [&text[..at], &separator, &text[at + separator.len()..]],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::from(Tuple::from(parts.map(Value::from).to_vec())))
}

/// `split` and `rsplit`, whose arguments may be named.
fn split(text: &str, from_end: bool, args: &[Value]) -> Result<Value, Error> {
    let (separator, most, named): (Option<Value>, Option<i64>, Kwargs) = from_args(args)?;
    let separator = match separator {
        Some(separator) => Some(separator),
        None => named.get::<Option<Value>>("sep")?,
    };
    let most = match most {
        Some(most) => Some(most),
        None => named.get::<Option<i64>>("maxsplit")?,
    };
    named.assert_all_used()?;
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let separator = match separator.filter(|separator| !separator.is_none()) {
        None => None,
        Some(separator) => match separator.as_str() {
            Some("") => return Err(bad("empty separator")),
            Some(separator) => Some(separator.to_string()),
            None => return Err(bad("a separator is a string")),
        },
    };
    let mut parts: Vec<&str> = Vec::new();
    let mut rest = if separator.is_none() { text.trim() } else { text };
    if separator.is_none() && rest.is_empty() {
        return Ok(Value::from(Vec::<Value>::new()));
    }
    while parts.len() < most {
        let found = match (&separator, from_end) {
            (Some(separator), false) => rest.split_once(separator.as_str()),
            (Some(separator), true) => rest.rsplit_once(separator.as_str()),
            (None, false) => rest.split_once(char::is_whitespace).map(|(a, b)| (a, b.trim_start())),
            (None, true) => rest.rsplit_once(char::is_whitespace).map(|(a, b)| (a.trim_end(), b)),
        };
        let Some((before, behind)) = found else { break };
        let (part, left) = if from_end { (behind, before) } else { (before, behind) };
        parts.push(part);
        rest = left;
    }
    // What is left of the text has the white space at its other end still.
    if separator.is_none() && parts.len() == most {
        let (start, end) = (text.trim_start(), text.trim_end());
        if from_end {
            rest = &text[..rest.as_ptr() as usize - text.as_ptr() as usize + rest.len()];
            rest = if most == 0 { end } else { rest };
        } else {
            rest = &text[rest.as_ptr() as usize - text.as_ptr() as usize..];
            rest = if most == 0 { start } else { rest };
        }
    }
    parts.push(rest);
    if from_end {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Lines as Python ends them.
fn lines(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (keep, named): (Option<bool>, Kwargs) = from_args(args)?;
    let keep = keep.or(named.get("keepends")?).unwrap_or(false);
    named.assert_all_used()?;
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut all: Vec<Value> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let mark = match rest[end..].chars().next() {
            None => 0,
            Some('\r') if rest[end..].starts_with("\r\n") => 2,
            Some(c) => c.len_utf8(),
        };
        all.push(Value::from(&rest[..if keep { end + mark } else { end }]));
        rest = &rest[end + mark..];
    }
    Ok(Value::from(all))
}

/// The part of a text that `start` and `end` name, and where it begins, in characters; `None`: it begins behind
/// the end.
fn part(text: &str, start: Option<i64>, end: Option<i64>) -> Option<(&str, usize)> {
    if start.is_none() && end.is_none() {
        return Some((text, 0));
    }
    let len = text.chars().count();
    let place = |at: i64| match usize::try_from(at) {
        Ok(at) => at,
        Err(_) => len.saturating_sub(usize::try_from(at.unsigned_abs()).unwrap_or(usize::MAX)),
    };
    let (start, end) = (start.map_or(0, place), end.map_or(len, place).min(len));
    if start > end {
        return None;
    }
    let byte = |at: usize| text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte);
    Some((&text[byte(start)..byte(end)], start))
}

fn place(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start, end): (String, Option<i64>, Option<i64>) = from_args(args)?;
    let part = part(text, start, end);
    if name == "count" {
        let count = part.map_or(0, |(part, _)| match what.as_str() {
            "" => part.chars().count() + 1,
            what => part.matches(what).count(),
        });
        return Ok(Value::from(count));
    }
    let found = part.and_then(|(part, before)| {
        let at = if name.starts_with('r') { part.rfind(&what) } else { part.find(&what) }?;
        Some(before + part[..at].chars().count())
    });
    match found {
        Some(at) => Ok(Value::from(at)),
        None if name.ends_with("index") => Err(bad("substring not found")),
        None => Ok(Value::from(-1)),
    }
}

/// `startswith` and `endswith` of a part of a text.
fn edge(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (what, start, end): (Value, Option<i64>, Option<i64>) = from_args(args)?;
    let Some((part, _)) = part(text, start, end) else { return Ok(Value::from(false)) };
    let fits = |what: &str| match name {
        "startswith" => part.starts_with(what),
        _ => part.ends_with(what),
    };
    match what.as_str() {
        Some(what) => Ok(Value::from(fits(what))),
        None if matches!(what.kind(), ValueKind::Seq | ValueKind::Iterable) => {
            let any = what.try_iter()?.any(|what| what.as_str().is_some_and(fits));
            Ok(Value::from(any))
        }
        None => Err(bad("a string or a tuple of strings is needed")),
    }
}

fn justify(text: &str, name: &str, args: &[Value]) -> Result<Value, Error> {
    let (width, fill): (usize, Option<String>) = from_args(args)?;
    let fill = fill.unwrap_or_else(|| " ".to_string());
    if fill.chars().count() != 1 {
        return Err(bad("the fill character must be exactly one character long"));
    }
    let missing = width.saturating_sub(text.chars().count());
    let left = match name {
        "ljust" => 0,
        "rjust" => missing,
        // Where both sides cannot be equal, Python looks at the width.
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(Value::from(format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left))))
}

fn zfill(text: &str, width: usize) -> String {
    let zeros = "0".repeat(width.saturating_sub(text.chars().count()));
    match text.chars().next() {
        Some(sign @ ('+' | '-')) => format!("{sign}{zeros}{}", &text[1..]),
        _ => format!("{zeros}{text}"),
    }
}

fn expanded(text: &str, columns: usize) -> String {
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' => {
                let n = if columns == 0 { 0 } else { columns - column % columns };
                out.push_str(&" ".repeat(n));
                column += n;
            }
            _ => {
                out.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    out
}

fn swapped(c: char) -> Vec<char> {
    if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
}

/// Every letter behind none is a capital, every other is small.
fn title(text: &str) -> String {
    let mut within = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if within {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        within = c.is_alphabetic();
    }
    out
}

fn is_identifier(text: &str) -> bool {
    let begins = |c: char| c.is_alphabetic() || c == '_';
    text.starts_with(begins) && text.chars().all(|c| begins(c) || c.is_numeric())
}

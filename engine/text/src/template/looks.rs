//! Looks at what a filter, a test, a method or an operator of a template is given: it counts the work of reading that,
//! and refuses what would be made of it, if that is too much.
//!
//! All looks have one form, [`Look`]. What is looked at first is the value that a filter is applied to, or the left
//! operand.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::meter::{CHAR_WORK, Meter, TEST_WORK};

/// Looks at arguments, the value of a filter first.
pub type Look = fn(&mut Meter, &[Value]) -> Result<(), Error>;

/// Most bytes that an escape makes of one byte.
pub const MAX_ESCAPED: u64 = 6;
/// Bytes that sorted JSON takes before it is written, for each byte of its text.
const SORTED_JSON: u64 = 32;
/// Most columns of an indentation, and most lists of `batch` and `slice`.
pub const MAX_TEMPLATE_COUNT: u64 = 4096;

pub fn nothing(_: &mut Meter, _: &[Value]) -> Result<(), Error> {
    Ok(())
}

pub fn text_of_all(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    // A character of another case may have three times its bytes.
    let len = texts(meter, args)?;
    meter.allow(len.saturating_mul(3))
}

/// Bytes of all arguments written out. Each is looked at.
pub fn texts(meter: &mut Meter, args: &[Value]) -> Result<u64, Error> {
    args.iter().try_fold(0, |sum: u64, arg| {
        let len = meter.text_len(arg)?;
        meter.work(CHAR_WORK * len)?;
        Ok(sum + len)
    })
}

/// The characters of a text are looked at, or the items of a list.
pub fn value_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    args.first().map_or(Ok(()), |value| meter.read_items(value))
}

/// Each item is looked at with all arguments.
pub fn each_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let [values, rest @ ..] = args else { return Ok(()) };
    meter.read_items(values)?;
    let before = meter.work_left();
    read_look(meter, rest)?;
    meter.work((before - meter.work_left()).saturating_mul(n_items(values)))
}

pub fn n_items(values: &Value) -> u64 {
    values.len().unwrap_or(1) as u64
}

pub fn read_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    args.iter().try_for_each(|arg| meter.read(arg))
}

pub fn compare_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    meter.work(TEST_WORK)?;
    match args {
        [left, right, ..] => meter.compare(left, right),
        _ => Ok(()),
    }
}

/// A value is looked for in a text, a list or a mapping: a mapping finds it by all of it.
pub fn contains_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let [value, container, ..] = args else { return Ok(()) };
    match container.kind() {
        ValueKind::Map => meter.read(value),
        ValueKind::String => {
            meter.read(container)?;
            if value.as_object().is_some() { meter.text_len(value).map(drop) } else { Ok(()) }
        }
        ValueKind::Seq | ValueKind::Iterable => meter.read(container),
        _ => Ok(()),
    }
}

/// An item of a text is found by counting, that of a mapping by all of its key.
pub fn item_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let [value, key] = args else { return Ok(()) };
    match value.as_str() {
        Some(text) => meter.work(text.len() as u64),
        None => meter.read(key),
    }
}

pub fn add_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let [left, right] = args else { return Ok(()) };
    match (left.as_str(), right.as_str()) {
        // It is put together, and then copied.
        (Some(left), Some(right)) => meter.allow(2 * (left.len() + right.len()) as u64),
        _ => {
            meter.right(right);
            Ok(())
        }
    }
}

/// A text or a list, so many times.
pub fn times_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let [left, right] = args else { return Ok(()) };
    for (value, times) in [(left, right), (right, left)] {
        let times = times.as_usize().unwrap_or(0);
        match value.as_str() {
            Some(text) => meter.allow(2 * (text.len() as u64).saturating_mul(times as u64))?,
            None if value.as_object().is_some() => {
                meter.allow_items(value.len().unwrap_or(0).saturating_mul(times))?;
            }
            None => {}
        }
    }
    Ok(())
}

/// Items are compared with each other, or with the least and the greatest of them.
pub fn order_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let Some(values) = args.first() else { return Ok(()) };
    each_look(meter, args)?;
    let n = values.len().unwrap_or(0);
    let keys = match named(args, "attribute").as_str() {
        Some(names) => 1 + names.matches(',').count(),
        None => 1,
    };
    meter.allow_items(n.saturating_mul(keys))?;
    let before = meter.work_left();
    read_look(meter, args)?;
    let times = u64::from(1 + n.checked_ilog2().unwrap_or(0)).saturating_mul(keys as u64);
    meter.work((before - meter.work_left()).saturating_mul(times))
}

pub fn order_items_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    order_look(meter, args)?;
    items_look(meter, args)
}

/// Texts and lists are added one by one, so that the first is copied with each.
pub fn sum_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    join_look(meter, args)?;
    let before = meter.work_left();
    read_look(meter, args)?;
    let start = match args.get(2).filter(|arg| !arg.is_kwargs()) {
        Some(start) => start.clone(),
        None => named(args, "start"),
    };
    let is_of_numbers = start.is_undefined() || start.is_number();
    let times = if is_of_numbers { 1 } else { args.first().map_or(1, n_items) };
    meter.work((before - meter.work_left()).saturating_mul(times))
}

pub fn escape_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let len = texts(meter, args)?;
    meter.allow(MAX_ESCAPED * len)
}

/// Each character at an end of the text is compared with all that are to go.
pub fn strip_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    text_of_all(meter, args)?;
    let len = |arg: Option<&Value>| arg.and_then(Value::as_str).map_or(0, str::len) as u64;
    // They are made a list of characters.
    meter.allow(size_of::<char>() as u64 * len(args.get(1)))?;
    meter.work(len(args.first()).saturating_mul(len(args.get(1))))
}

/// A list of pairs, or of the characters of a text.
pub fn items_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let n = args.first().map_or(0, |value| match value.as_str() {
        Some(text) => text.chars().count(),
        None => value.len().unwrap_or(0),
    });
    meter.allow_items(n)
}

pub fn split_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    texts(meter, args)?;
    let Some(text) = args.first().and_then(Value::as_str) else { return Ok(()) };
    let n = match args.get(1).and_then(Value::as_str).filter(|between| !between.is_empty()) {
        Some(between) => text.matches(between).count() + 1,
        None => text.split_whitespace().count(),
    };
    meter.allow_items(n)
}

pub fn lines_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    texts(meter, args)?;
    let n =
        args.first().and_then(Value::as_str).map_or(0, |text| text.matches(['\n', '\r']).count());
    meter.allow_items(n + 1)
}

pub fn replace_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    texts(meter, args)?;
    let [value, from, to, ..] = args else { return Ok(()) };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let times = text(value).matches(&text(from)).count() as u64;
    let to = meter.text_len(to)?;
    meter.allow(times.saturating_mul(to))
}

pub fn join_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let [values, rest @ ..] = args else { return Ok(()) };
    meter.read_items(values)?;
    let between = texts(meter, rest)?;
    let mut sum = 0_u64;
    for item in values.try_iter().into_iter().flatten() {
        sum = sum.saturating_add(meter.text_len(&item)?).saturating_add(between);
        meter.allow(sum)?;
    }
    Ok(())
}

pub fn indent_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let len = texts(meter, args)?;
    let width = match args.get(1).filter(|arg| !arg.is_kwargs()).cloned() {
        Some(width) => width,
        None => named(args, "width"),
    };
    let width = u64::try_from(width).unwrap_or(0);
    at_most(width, "columns of an indentation")?;
    // A line end is a byte at least.
    let n_lines = match args.first().and_then(Value::as_str) {
        Some(text) => 1 + text.matches('\n').count() as u64,
        None => len,
    };
    meter.allow(n_lines.saturating_mul(width))
}

/// A text on so many columns.
pub fn width_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let len = texts(meter, args)?;
    let width = args.get(1).cloned().map_or(0, |width| u64::try_from(width).unwrap_or(0));
    at_most(width, "columns of a text")?;
    // A character has four bytes at most.
    meter.allow(len.saturating_add(4 * width))
}

pub fn tabs_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let len = texts(meter, args)?;
    let columns = args.get(1).cloned().map_or(8, |columns| u64::try_from(columns).unwrap_or(0));
    at_most(columns, "columns of a tab")?;
    let tabs = args.first().and_then(Value::as_str).map_or(0, |text| text.matches('\t').count());
    meter.allow(len.saturating_add((tabs as u64).saturating_mul(columns)))
}

pub fn count_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let count = args.get(1).cloned().map_or(0, |count| u64::try_from(count).unwrap_or(0));
    at_most(count, "lists or items of a list")?;
    meter.allow_items(args.first().and_then(Value::len).unwrap_or(0))
}

/// At most each place in the format takes all arguments, at the largest width that is written there or given
/// as an argument.
pub fn format_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let texts = texts(meter, args)?;
    let Some(format) = args.first().and_then(Value::as_str) else { return Ok(()) };
    let n_places = format.matches(['%', '{']).count() as u64;
    let digits = format.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty());
    let mut width = digits.map(|run| run.parse().unwrap_or(u64::MAX)).max().unwrap_or(0);
    if format.contains('*')
        || format.split('{').any(|part| part.contains(':') && !part.contains('}'))
    {
        let given = args.iter().filter_map(|arg| arg.as_i64()).max().unwrap_or(0);
        width = width.max(u64::try_from(given).unwrap_or(0));
    }
    meter.allow(n_places.saturating_mul(texts.saturating_add(width)))
}

/// Each part stands on a line of its own, indented by as much as it is deep.
pub fn json_look(meter: &mut Meter, args: &[Value]) -> Result<(), Error> {
    let len = texts(meter, args)?;
    let is_sorted = named(args, "sort_keys").is_true();
    meter.allow(if is_sorted { SORTED_JSON } else { MAX_ESCAPED } * len)?;
    let indent = u64::try_from(named(args, "indent")).unwrap_or(0);
    at_most(indent, "columns of an indentation")?;
    let is_nested = args.first().is_some_and(|value| value.as_object().is_some());
    if indent == 0 || !is_nested {
        return Ok(());
    }
    let json = meter.indented_len(&args[0], indent, 1);
    meter.allow(json.saturating_add(len))
}

pub fn named(args: &[Value], name: &str) -> Value {
    let named = args.iter().find(|arg| arg.is_kwargs());
    named.and_then(|kwargs| kwargs.get_attr(name).ok()).unwrap_or_default()
}

pub fn at_most(count: u64, what: &str) -> Result<(), Error> {
    if count <= MAX_TEMPLATE_COUNT {
        return Ok(());
    }
    let text = format!("{count} {what}, the limit is {MAX_TEMPLATE_COUNT}");
    Err(Error::new(ErrorKind::InvalidOperation, text))
}

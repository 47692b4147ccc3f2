//! Wraps the template engine's filters, and Python's methods: each looks at what it is about to make, and
//! refuses too much.
//!
//! Everything else is counted once it is there (`metered`). That suffices: a filter that is not treated here
//! makes at most a few times what it is given, and its inputs were counted.

use minijinja::value::{Rest, Value, ValueOrKwargs, from_args};
use minijinja::{Environment, Error, ErrorKind, State, filters};

use super::list::List;
use super::meter::{self, Meter};
use super::{globals, metered, python};

/// Most columns of an indentation, and most lists of `batch` and `slice`.
pub const MAX_TEMPLATE_COUNT: u64 = 4096;

/// Filters whose results nest deeper than what they are given.
const DEEPEN: [&str; 5] = ["batch", "slice", "groupby", "items", "dictsort"];

/// Filters and methods whose results have items that are new as well: lists of lists, and texts.
const MAKE_ITEMS: [&str; 11] = [
    "batch",
    "slice",
    "groupby",
    "items",
    "dictsort",
    "map",
    "split",
    "lines",
    "rsplit",
    "splitlines",
    "partition",
];

/// Looks at the arguments of a filter, its value first.
type Look = fn(&Meter, &[Value]) -> Result<(), Error>;

/// Installs the engine's filters with their looks, and the meter's own. Filters that only serve to look
/// into values (`pprint`), and those that Jinja does not have (`chain`, `zip`), stay out.
pub fn install(env: &mut Environment<'_>) {
    for name in ["pprint", "chain", "zip"] {
        env.remove_filter(name);
    }
    env.remove_global("debug");
    let mut guard = |name: &'static str, plain: Value, look: Look| {
        env.add_filter(name, move |state: &mut State<'_, '_>, args: Rest<ValueOrKwargs>| {
            let args = args.into_values();
            // A default may be a namespace: it is handed on, not put into anything.
            let rest =
                if matches!(name, "default" | "d") { &[] } else { args.get(1..).unwrap_or(&[]) };
            rest.iter().try_for_each(no_variables)?;
            look(Meter::of(state), &args)?;
            // Attributes of values are there already.
            let is_picked = !named(&args, "attribute").is_undefined();
            let made = match name {
                "map" if !is_picked => mapped(state, &plain, &args)?,
                "map" => plain.call(state, &args)?,
                name if MAKE_ITEMS.contains(&name) => {
                    let made = plain.call(state, &args)?;
                    Meter::of(state).with_new_items(made)?
                }
                _ => plain.call(state, &args)?,
            };
            if DEEPEN.contains(&name) {
                Meter::of(state).walk_parts(&made)?;
            }
            Ok::<_, Error>(made)
        });
    };
    macro_rules! filters {
        ($($look:expr => $($name:ident)*;)*) => {
            $($(guard(stringify!($name), Value::from_function(filters::$name), $look);)*)*
        };
    }
    filters! {
        // They take lists and mappings as such: nothing is written out.
        nothing => length reverse default first last min max sort bool select reject
            selectattr rejectattr map unique attr abs round;
        items_look => dictsort items groupby list;
        split_look => split;
        lines_look => lines;
        text_of_all => safe escape lower upper title capitalize trim int float string;
        replace_look => replace;
        join_look => join;
        join_look => sum;
        indent_look => indent;
        format_look => format;
        count_look => batch slice;
    }
    guard("count", Value::from_function(filters::length), nothing);
    guard("d", Value::from_function(filters::default), nothing);
    guard("e", Value::from_function(filters::escape), text_of_all);
    guard("forceescape", Value::from_function(filters::escape), text_of_all);
    guard("truncate", Value::from_function(globals::truncate), text_of_all);
    guard("striptags", Value::from_function(minijinja_contrib::filters::striptags), text_of_all);
    guard("center", Value::from_function(globals::center), width_look);
    guard("wordcount", Value::from_function(globals::wordcount), text_of_all);
    guard("tojson", Value::from_function(python::tojson), json_look);
    install_meter(env);
}

fn install_meter(env: &mut Environment<'_>) {
    env.add_filter(metered::MADE, |state: &mut State<'_, '_>, value: Value| {
        Meter::of(state).made(value)
    });
    env.add_filter(metered::BUILT, |state: &mut State<'_, '_>, value: Value| {
        Meter::of(state).built(value)
    });
    env.add_filter(metered::RIGHT, |state: &mut State<'_, '_>, value: Value| {
        Meter::of(state).right(&value);
        value
    });
    env.add_filter(metered::ADDED, |state: &mut State<'_, '_>, value: Value| {
        Meter::of(state).added(value)
    });
    env.add_filter(metered::KEPT, |value: Value| meter::only_a_variable(&value).map(|()| value));
    env.add_filter(metered::REMAINDER, |state: &mut State<'_, '_>, left: Value, right: Value| {
        let meter = Meter::of(state);
        if left.as_str().is_some() {
            format_look(meter, &[left.clone(), right.clone()])?;
        }
        let made = python::remainder(&left, &right)?;
        meter.made(made)
    });
    env.add_filter(metered::CONCAT, |state: &mut State<'_, '_>, left: Value, right: Value| {
        concat(Meter::of(state), &left, &right)
    });
    env.add_filter(metered::CONCAT_ONTO, |state: &mut State<'_, '_>, left: Value, right: Value| {
        let meter = Meter::of(state);
        let text = concat(meter, &left, &right)?;
        meter.gone(&left);
        Ok::<_, Error>(text)
    });
    env.set_formatter(|out, state, value| {
        let meter = Meter::of(state);
        let len = meter.text_len(value)?;
        meter.count(len)?;
        minijinja::escape_formatter(out, state, value)
    });
}

/// Both as one text.
fn concat(meter: &mut Meter, left: &Value, right: &Value) -> Result<Value, Error> {
    meter.allow(meter.text_len(left)?.saturating_add(meter.text_len(right)?))?;
    meter.made(Value::from(format!("{left}{right}")))
}

/// Python's methods, as [`python::method`], looked at before.
pub fn method(
    state: &mut State<'_, '_>,
    value: &Value,
    name: &str,
    args: &[Value],
) -> Result<Value, Error> {
    if name != "get" {
        args.iter().try_for_each(no_variables)?;
    }
    if let Some(list) = value.downcast_object::<List>() {
        match name {
            "append" => {
                let (item,): (Value,) = from_args(args)?;
                Meter::of(state).walk(&item, list.depth() + 1, Some(&list))?;
                return list.append(item).map(Value::from);
            }
            "extend" => {
                let (items,): (Value,) = from_args(args)?;
                let items: Vec<Value> = items.try_iter()?.collect();
                for item in &items {
                    Meter::of(state).walk(item, list.depth() + 1, Some(&list))?;
                }
                return items.into_iter().try_for_each(|item| list.append(item)).map(Value::from);
            }
            "insert" => {
                let (at, item): (i64, Value) = from_args(args)?;
                Meter::of(state).walk(&item, list.depth() + 1, Some(&list))?;
                return list.insert(at, item).map(Value::from);
            }
            "pop" => return list.pop(from_args::<(Option<i64>,)>(args)?.0),
            _ => {}
        }
    }
    if value.as_str().is_some() {
        let meter = Meter::of(state);
        let all: Vec<Value> = std::iter::once(value.clone()).chain(args.iter().cloned()).collect();
        match name {
            "replace" => replace_look(meter, &all)?,
            // Here the separator comes first.
            "join" if all.len() > 1 => join_look(meter, &[all[1].clone(), all[0].clone()])?,
            "format" => format_look(meter, &all)?,
            "center" | "ljust" | "rjust" | "zfill" => width_look(meter, &all)?,
            "expandtabs" => tabs_look(meter, &all)?,
            "split" | "rsplit" => split_look(meter, &all)?,
            "splitlines" => lines_look(meter, &all)?,
            _ => {}
        }
    }
    let made = python::method(state, value, name, args)?;
    if MAKE_ITEMS.contains(&name) { Meter::of(state).with_new_items(made) } else { Ok(made) }
}

/// Refuses namespaces and loops, also among named arguments.
fn no_variables(value: &Value) -> Result<(), Error> {
    meter::only_a_variable(value)?;
    if value.is_kwargs() {
        for name in value.try_iter()? {
            meter::only_a_variable(&value.get_item(&name)?)?;
        }
    }
    Ok(())
}

/// Runs `map` with a filter, item by item. Each result is counted before the next one is made.
fn mapped(state: &mut State<'_, '_>, plain: &Value, args: &[Value]) -> Result<Value, Error> {
    let Some(values) = args.first().filter(|values| values.try_iter().is_ok()) else {
        return plain.call(state, args);
    };
    let mut items = Vec::new();
    for item in values.try_iter()? {
        let mut one = args.to_vec();
        one[0] = Value::from(vec![item]);
        let made = plain.call(state, &one)?;
        let made = Meter::of(state).with_new_items(made)?;
        items.extend(made.try_iter()?);
    }
    // How an empty list is mapped says whether the filter is there.
    if items.is_empty() { plain.call(state, args) } else { Ok(Value::from(items)) }
}

fn nothing(_: &Meter, _: &[Value]) -> Result<(), Error> {
    Ok(())
}

fn text_of_all(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    texts(meter, args).map(drop)
}

/// Bytes of all arguments written out.
fn texts(meter: &Meter, args: &[Value]) -> Result<u64, Error> {
    args.iter().try_fold(0, |sum: u64, arg| Ok(sum + meter.text_len(arg)?))
}

/// A list of pairs, or of the characters of a text.
fn items_look(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    let n = args.first().map_or(0, |value| match value.as_str() {
        Some(text) => text.chars().count(),
        None => value.len().unwrap_or(0),
    });
    meter.allow_items(n)
}

fn split_look(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    texts(meter, args)?;
    let Some(text) = args.first().and_then(Value::as_str) else { return Ok(()) };
    let n = match args.get(1).and_then(Value::as_str).filter(|between| !between.is_empty()) {
        Some(between) => text.matches(between).count() + 1,
        None => text.split_whitespace().count(),
    };
    meter.allow_items(n)
}

fn lines_look(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    texts(meter, args)?;
    let n =
        args.first().and_then(Value::as_str).map_or(0, |text| text.matches(['\n', '\r']).count());
    meter.allow_items(n + 1)
}

fn replace_look(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    texts(meter, args)?;
    let [value, from, to, ..] = args else { return Ok(()) };
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let times = text(value).matches(&text(from)).count() as u64;
    meter.allow(times.saturating_mul(meter.text_len(to)?))
}

fn join_look(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    let [values, rest @ ..] = args else { return Ok(()) };
    let between = texts(meter, rest)?;
    let mut sum = 0_u64;
    for item in values.try_iter().into_iter().flatten() {
        sum = sum.saturating_add(meter.text_len(&item)?).saturating_add(between);
        meter.allow(sum)?;
    }
    Ok(())
}

fn indent_look(meter: &Meter, args: &[Value]) -> Result<(), Error> {
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
fn width_look(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    let len = texts(meter, args)?;
    let width = args.get(1).cloned().map_or(0, |width| u64::try_from(width).unwrap_or(0));
    at_most(width, "columns of a text")?;
    // A character has four bytes at most.
    meter.allow(len.saturating_add(4 * width))
}

fn tabs_look(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    let len = texts(meter, args)?;
    let columns = args.get(1).cloned().map_or(8, |columns| u64::try_from(columns).unwrap_or(0));
    at_most(columns, "columns of a tab")?;
    let tabs = args.first().and_then(Value::as_str).map_or(0, |text| text.matches('\t').count());
    meter.allow(len.saturating_add((tabs as u64).saturating_mul(columns)))
}

fn count_look(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    let count = args.get(1).cloned().map_or(0, |count| u64::try_from(count).unwrap_or(0));
    at_most(count, "lists or items of a list")?;
    meter.allow_items(args.first().and_then(Value::len).unwrap_or(0))
}

/// At most each place in the format takes all arguments, at the largest width that is written there or given
/// as an argument.
fn format_look(meter: &Meter, args: &[Value]) -> Result<(), Error> {
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
fn json_look(meter: &Meter, args: &[Value]) -> Result<(), Error> {
    let len = texts(meter, args)?;
    let indent = u64::try_from(named(args, "indent")).unwrap_or(0);
    at_most(indent, "columns of an indentation")?;
    let is_nested = args.first().is_some_and(|value| value.as_object().is_some());
    if indent == 0 || !is_nested {
        return Ok(());
    }
    let json = meter.indented_len(&args[0], indent, 1);
    meter.allow(json.saturating_add(len))
}

fn named(args: &[Value], name: &str) -> Value {
    let named = args.iter().find(|arg| arg.is_kwargs());
    named.and_then(|kwargs| kwargs.get_attr(name).ok()).unwrap_or_default()
}

fn at_most(count: u64, what: &str) -> Result<(), Error> {
    if count <= MAX_TEMPLATE_COUNT {
        return Ok(());
    }
    let text = format!("{count} {what}, the limit is {MAX_TEMPLATE_COUNT}");
    Err(Error::new(ErrorKind::InvalidOperation, text))
}

//! Wraps the template engine's filters, and Python's methods: each looks at what it is about to make, and
//! refuses too much.
//!
//! Everything else is counted once it is there (`metered`). That suffices: a filter that is not treated here
//! makes at most a few times what it is given, and its inputs were counted.

use std::fmt::Write as _;

use minijinja::value::{Rest, Tuple, Value, ValueOrKwargs, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State, filters, tests};

use super::list::List;
use super::looks::{
    Look, MAX_ESCAPED, add_look, compare_look, contains_look, count_look, each_look, escape_look,
    format_look, indent_look, item_look, items_look, join_look, json_look, lines_look, named,
    nothing, order_items_look, order_look, read_look, replace_look, split_look, strip_look,
    sum_look, tabs_look, text_of_all, times_look, value_look, width_look,
};
use super::meter::{self, CALL_WORK, Meter, TEST_WORK};
use super::{globals, metered, python};

/// Items for which a list has room when one is added: it grows to twice its length.
const GROWTH: usize = 2;

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
            let meter = Meter::of(state);
            meter.work(CALL_WORK)?;
            look(meter, &args)?;
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
        nothing => default bool abs round;
        value_look => length reverse first last;
        each_look => select reject selectattr rejectattr map;
        item_look => attr;
        order_look => min max unique sort;
        items_look => items list;
        order_items_look => dictsort groupby;
        split_look => split;
        lines_look => lines;
        text_of_all => safe lower upper title capitalize int float string;
        escape_look => escape;
        strip_look => trim;
        replace_look => replace;
        join_look => join;
        sum_look => sum;
        indent_look => indent;
        format_look => format;
        count_look => batch slice;
    }
    guard("count", Value::from_function(filters::length), value_look);
    guard("d", Value::from_function(filters::default), nothing);
    guard("e", Value::from_function(filters::escape), escape_look);
    guard("forceescape", Value::from_function(filters::escape), escape_look);
    guard("truncate", Value::from_function(globals::truncate), text_of_all);
    guard("striptags", Value::from_function(minijinja_contrib::filters::striptags), text_of_all);
    guard("center", Value::from_function(globals::center), width_look);
    guard("wordcount", Value::from_function(globals::wordcount), text_of_all);
    guard("tojson", Value::from_function(python::tojson), json_look);
    install_tests(env);
    install_meter(env);
}

/// Installs the engine's tests that compare, or look at a text.
fn install_tests(env: &mut Environment<'_>) {
    let mut guard = |names: &[&'static str], plain: Value, look: Look| {
        for name in names {
            let plain = plain.clone();
            env.add_test(*name, move |state: &mut State<'_, '_>, args: Rest<Value>| {
                let meter = Meter::of(state);
                meter.work(TEST_WORK)?;
                look(meter, &args)?;
                plain.call(state, &args)
            });
        }
    };
    guard(&["eq", "equalto", "=="], Value::from_function(tests::is_eq), compare_look);
    guard(&["ne", "!="], Value::from_function(tests::is_ne), compare_look);
    guard(&["lt", "lessthan", "<"], Value::from_function(tests::is_lt), compare_look);
    guard(&["le", "<="], Value::from_function(tests::is_le), compare_look);
    guard(&["gt", "greaterthan", ">"], Value::from_function(tests::is_gt), compare_look);
    guard(&["ge", ">="], Value::from_function(tests::is_ge), compare_look);
    guard(&["sameas"], Value::from_function(tests::is_sameas), compare_look);
    guard(&["in"], Value::from_function(tests::is_in), contains_look);
    guard(&["lower"], Value::from_function(tests::is_lower), value_look);
    guard(&["upper"], Value::from_function(tests::is_upper), value_look);
    guard(&["startingwith"], Value::from_function(tests::is_startingwith), text_of_all);
    guard(&["endingwith"], Value::from_function(tests::is_endingwith), text_of_all);
}

fn install_meter(env: &mut Environment<'_>) {
    env.add_filter(metered::MADE, |state: &mut State<'_, '_>, value: Value| {
        Meter::of(state).made(value)
    });
    env.add_filter(metered::BUILT, |state: &mut State<'_, '_>, value: Value| {
        Meter::of(state).built(value)
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
    env.add_filter(metered::ENCLOSED, |state: &mut State<'_, '_>, nothing: Value| {
        Meter::of(state).enclosed().map(|()| nothing)
    });
    env.add_filter(metered::CAPTURED, |state: &mut State<'_, '_>, value: Value| {
        Meter::of(state).captured(value)
    });
    let mut look = |name: &'static str, look: Look| {
        env.add_filter(name, move |state: &mut State<'_, '_>, operands: Value| {
            let all = operands.downcast_object_ref::<Tuple>().ok_or_else(|| {
                Error::new(ErrorKind::InvalidOperation, "operands that are counted are a tuple")
            })?;
            look(Meter::of(state), all)?;
            Ok(operands)
        });
    };
    look(metered::ADD_LOOK, add_look);
    look(metered::TIMES_LOOK, times_look);
    look(metered::COMPARE_LOOK, compare_look);
    look(metered::CONTAINS_LOOK, contains_look);
    look(metered::ITEM_LOOK, item_look);
    look(metered::VALUE_LOOK, value_look);
    look(metered::READ_LOOK, read_look);
    look(metered::SPREAD_LOOK, |meter, all| {
        all.iter().try_for_each(|list| meter.count_items(list.len().unwrap_or(0)))
    });
    env.set_formatter(|out, state, value| {
        let is_escaped = !matches!(state.auto_escape(), AutoEscape::None) && !value.is_safe();
        let meter = Meter::of(state);
        let len = meter.text_len(value)?;
        let escaped = if is_escaped { MAX_ESCAPED * len } else { len };
        meter.count(escaped)?;
        minijinja::escape_formatter(out, state, value)
    });
}

/// Both as one text.
fn concat(meter: &mut Meter, left: &Value, right: &Value) -> Result<Value, Error> {
    let len = meter.text_len(left)?.saturating_add(meter.text_len(right)?);
    meter.allow(2 * len)?;
    let mut text = String::with_capacity(len as usize);
    for value in [left, right] {
        match value.as_str() {
            Some(part) => text.push_str(part),
            // Writing to a text cannot fail.
            None => drop(write!(text, "{value}")),
        }
    }
    meter.made(Value::from(text))
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
                let meter = Meter::of(state);
                meter.count_items(GROWTH)?;
                meter.walk(&item, list.depth() + 1, Some(&list))?;
                return list.append(item).map(Value::from);
            }
            "extend" => {
                let (items,): (Value,) = from_args(args)?;
                let meter = Meter::of(state);
                meter.count_items(GROWTH * items.len().unwrap_or(0))?;
                let items: Vec<Value> = items.try_iter()?.collect();
                for item in &items {
                    meter.walk(item, list.depth() + 1, Some(&list))?;
                }
                return items.into_iter().try_for_each(|item| list.append(item)).map(Value::from);
            }
            "insert" => {
                let (at, item): (i64, Value) = from_args(args)?;
                let meter = Meter::of(state);
                meter.count_items(GROWTH)?;
                meter.read_items(value)?;
                meter.walk(&item, list.depth() + 1, Some(&list))?;
                return list.insert(at, item).map(Value::from);
            }
            "pop" => {
                Meter::of(state).read_items(value)?;
                return list.pop(from_args::<(Option<i64>,)>(args)?.0);
            }
            _ => {}
        }
    }
    let meter = Meter::of(state);
    meter.work(CALL_WORK)?;
    read_look(meter, args)?;
    if value.as_str().is_some() {
        meter.read_items(value)?;
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
            "strip" | "lstrip" | "rstrip" => strip_look(meter, &all)?,
            _ => {}
        }
    } else if matches!(name, "count" | "index") {
        meter.read(value)?;
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
        Meter::of(state).work(TEST_WORK)?;
        let made = plain.call(state, &one)?;
        let made = Meter::of(state).with_new_items(made)?;
        items.extend(made.try_iter()?);
    }
    // How an empty list is mapped says whether the filter is there.
    if items.is_empty() { plain.call(state, args) } else { Ok(Value::from(items)) }
}

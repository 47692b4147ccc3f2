//! Numeric bounds of schemas, in a form that the grammar library enforces exactly. The library computes with f64, and
//! makes i64 out of them: a number that is exact in neither would become its neighbour. Such numbers are found here,
//! each with the nearest number that is exact.

use serde_json::{Map, Value};

use crate::values::number::{self, Number};

/// Keywords that bound a number from below, and from above: the second one excludes its value.
pub const LEAST: [&str; 2] = ["minimum", "exclusiveMinimum"];
/// The keywords of upper bounds; see [`LEAST`].
pub const MOST: [&str; 2] = ["maximum", "exclusiveMaximum"];

/// The lowest whole number that is held: the real number next to the lowest i64, of which the library cannot turn the sign.
pub const LOWEST: i128 = i64::MIN as i128 + 1024;

/// The highest one: the real number behind it becomes this one again.
pub const HIGHEST: i128 = i64::MAX as i128;

/// The limit of exact integers in f64: from here on f64 has no fractions, and not every integer.
const SPARSE: f64 = (1_u64 << 53) as f64;

/// The limit of one-sided bounds: from here on an integer has more digits than the library can count to.
const FAR: i128 = 1_000_000_000_000_000_000;

/// The lower or the upper end of a range.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Least,
    Most,
}

/// A bound as a schema says it.
struct Bound<'a> {
    word: &'static str,
    value: &'a Value,
    number: Number,
    excludes: bool,
}

impl End {
    const BOTH: [Self; 2] = [Self::Least, Self::Most];

    fn words(self) -> [&'static str; 2] {
        if self == Self::Least { LEAST } else { MOST }
    }

    fn other(self) -> Self {
        if self == Self::Least { Self::Most } else { Self::Least }
    }

    /// Whether a bound leaves only numbers that are as long or longer.
    fn points_away(self, real: f64) -> bool {
        match self {
            Self::Least => real >= FAR as f64,
            Self::Most => real <= -FAR as f64,
        }
    }

    /// The bounds of a schema at this end.
    fn of(self, words: &Map<String, Value>) -> Vec<Bound<'_>> {
        let [plain, exclusive] = self.words();
        // The older form says yes or no.
        let older = words.get(exclusive) == Some(&Value::Bool(true));
        let bound = |word: &'static str, excludes: bool| {
            let value = words.get(word)?;
            number::of(value).map(|number| Bound { word, value, number, excludes })
        };
        [bound(plain, older), bound(exclusive, true)].into_iter().flatten().collect()
    }

    /// The outermost whole number that a bound allows.
    fn whole(self, bound: &Bound<'_>) -> i128 {
        let (below, above) = match bound.number {
            Number::Whole(whole) => (whole, whole),
            Number::Real(real) => (real.floor() as i128, real.ceil() as i128),
        };
        match (self, bound.excludes) {
            (Self::Least, false) => above,
            (Self::Least, true) => below.saturating_add(1),
            (Self::Most, false) => below,
            (Self::Most, true) => above.saturating_sub(1),
        }
    }

    /// The bound that counts, of whole numbers.
    fn tightest<'a>(self, bounds: &'a [Bound<'a>]) -> Option<(&'a Bound<'a>, i128)> {
        let all = bounds.iter().map(|bound| (bound, self.whole(bound)));
        match self {
            Self::Least => all.max_by_key(|(_, whole)| *whole),
            Self::Most => all.min_by_key(|(_, whole)| *whole),
        }
    }

    /// The next whole number from `whole` on, inwards, that is held.
    fn held(self, whole: i128) -> Option<i128> {
        let real = whole as f64;
        match self {
            Self::Least if whole > HIGHEST => None,
            Self::Least if whole <= LOWEST => Some(LOWEST),
            Self::Least if (real as i128) < whole => Some((real.next_up() as i128).min(HIGHEST)),
            Self::Most if whole < LOWEST => None,
            Self::Most if whole >= HIGHEST => Some(HIGHEST),
            Self::Most if (real as i128) > whole => Some(real.next_down() as i128),
            _ => Some((real as i128).min(HIGHEST)),
        }
    }

    /// The same of real numbers.
    fn held_real(self, number: Number) -> Option<f64> {
        let (lowest, highest) = (LOWEST as f64, -LOWEST as f64);
        let real = number.real();
        let rounded = match number {
            Number::Whole(whole) => (real as i128).cmp(&whole),
            Number::Real(_) => std::cmp::Ordering::Equal,
        };
        match self {
            Self::Least if real > highest => None,
            Self::Least if real < lowest => Some(lowest),
            Self::Least if rounded.is_lt() => Some(real.next_up()),
            Self::Most if real < lowest => None,
            Self::Most if real > highest => Some(highest),
            Self::Most if rounded.is_gt() => Some(real.next_down()),
            _ => Some(real),
        }
    }
}

/// Whether a schema's numbers are whole ones.
pub fn is_whole(words: &Map<String, Value>) -> bool {
    words.get("type").is_some_and(|ty| match ty {
        Value::Array(all) => {
            all.iter().any(|ty| ty == "integer") && !all.iter().any(|ty| ty == "number")
        }
        ty => ty == "integer",
    })
}

/// Whether a schema's types, where it names any, have whole numbers among them.
pub fn allows_whole(words: &Map<String, Value>) -> bool {
    let is_one = |ty: &Value| ty == "integer" || ty == "number";
    words.get("type").is_none_or(|ty| match ty {
        Value::Array(all) => all.iter().any(is_one),
        ty => is_one(ty),
    })
}

/// The whole number that a value is, where it is the one that was written.
pub fn exactly(value: &Value) -> Option<i128> {
    match number::of(value)? {
        Number::Whole(whole) => Some(whole),
        // It may have been written with more digits than were read.
        Number::Real(real) => (real.fract() == 0.0 && real.abs() < SPARSE).then_some(real as i128),
    }
}

/// The outermost whole numbers that the bounds of a schema allow, an end without a bound open; `None`: a bound is no number, or
/// not the one that was written.
pub fn whole_range(words: &Map<String, Value>) -> Option<(Option<i128>, Option<i128>)> {
    let mut ends = [None, None];
    for (end, found) in End::BOTH.into_iter().zip(&mut ends) {
        let bounds = end.of(words);
        let is_read = |bound: &Bound<'_>| match bound.number {
            Number::Whole(_) => true,
            Number::Real(real) => real.abs() < SPARSE,
        };
        let said = end.words().into_iter().filter_map(|word| words.get(word));
        if !bounds.iter().all(is_read) || bounds.len() < said.filter(|v| !v.is_boolean()).count() {
            return None;
        }
        *found = end.tightest(&bounds).map(|(_, whole)| whole);
    }
    let [least, most] = ends;
    Some((least, most))
}

/// The stricter of two values of a bound; `None`: the keyword is no bound, or a value is no number.
pub fn tighter<'a>(word: &str, one: &'a Value, other: &'a Value) -> Option<&'a Value> {
    let (left, right) = (exactly(one)?, exactly(other)?);
    let first = match word {
        word if LEAST.contains(&word) => left >= right,
        word if MOST.contains(&word) => left <= right,
        _ => return None,
    };
    Some(if first { one } else { other })
}

/// A number of a schema that cannot be held: its keyword, and what is wrong.
pub fn not_held(words: &Map<String, Value>) -> Option<(&'static str, String)> {
    no_number(words).or_else(|| no_literal(words)).or_else(|| {
        let held = if is_whole(words) { whole_not_held } else { real_not_held };
        End::BOTH.into_iter().find_map(|end| held(end, words))
    })
}

fn no_number(words: &Map<String, Value>) -> Option<(&'static str, String)> {
    let named = LEAST.into_iter().chain(MOST).chain(["multipleOf"]);
    named.filter_map(|word| Some((word, words.get(word)?))).find_map(|(word, value)| {
        let is_flag = value.is_boolean() && word.starts_with("exclusive");
        let is_good = value.is_number() || is_flag;
        (!is_good).then(|| (word, format!("is {}: a number is needed", kind(value))))
    })
}

fn no_literal(words: &Map<String, Value>) -> Option<(&'static str, String)> {
    ["const", "enum"].into_iter().find_map(|word| {
        let number = words.get(word).and_then(inexact)?;
        Some((word, format!("has {number}: a whole number of this size cannot be held exactly")))
    })
}

fn whole_not_held(end: End, words: &Map<String, Value>) -> Option<(&'static str, String)> {
    let bounds = end.of(words);
    let (bound, whole) = end.tightest(&bounds)?;
    let held = end.held(whole);
    (held != Some(whole))
        .then(|| (bound.word, told(end, bound.value, held.map(|held| held.to_string()))))
}

fn real_not_held(end: End, words: &Map<String, Value>) -> Option<(&'static str, String)> {
    let is_open = end.other().of(words).is_empty();
    end.of(words).iter().find_map(|bound| {
        let (held, real) = (end.held_real(bound.number), bound.number.real());
        let is_exact = match bound.number {
            Number::Whole(whole) => real as i128 == whole,
            Number::Real(_) => true,
        };
        let why = if held != Some(real) || !is_exact {
            told(end, bound.value, held.map(|held| real_value(held).to_string()))
        } else if bound.excludes && real.abs() >= SPARSE {
            // Another part of the schema may restrict the value to integers.
            format!("is {}: beyond 2^53 it is for \"type\": \"integer\" alone", bound.value)
        } else if is_open && end.points_away(real) {
            format!("is {}: beyond 10^18 a bound is held beside another one alone", bound.value)
        } else {
            return None;
        };
        Some((bound.word, why))
    })
}

fn told(end: End, value: &Value, held: Option<String>) -> String {
    let word = end.words()[0];
    match held {
        Some(held) => format!(
            "is {}, which cannot be held exactly: use \"{word}\": {held}, or leave it out",
            value
        ),
        None => format!("is {value}: numbers are held from {LOWEST} to {HIGHEST}"),
    }
}

/// A whole number of a value that no real number is.
fn inexact(value: &Value) -> Option<&Value> {
    match value {
        Value::Array(list) => list.iter().find_map(inexact),
        Value::Object(map) => map.values().find_map(inexact),
        value => match number::of(value)? {
            Number::Whole(HIGHEST) => None,
            Number::Whole(whole) => (!(LOWEST..HIGHEST).contains(&whole)
                || whole as f64 as i128 != whole)
                .then_some(value),
            // It may have been written with more digits than were read.
            Number::Real(real) => (real.abs() >= HIGHEST as f64).then_some(value),
        },
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Writes the numbers of a schema as they are held; those that are not become the next ones inwards.
pub fn rewrite(words: &mut Map<String, Value>) {
    let is_whole = is_whole(words);
    for end in End::BOTH {
        let bounds = end.of(words);
        let [plain, exclusive] = end.words();
        if is_whole {
            let Some((_, whole)) = end.tightest(&bounds) else { continue };
            let held = end.held(whole);
            drop(bounds);
            let Some(held) = held else {
                // Nothing that is held is within the bound.
                words.insert("enum".to_string(), Value::Array(Vec::new()));
                continue;
            };
            words.shift_remove(exclusive);
            words.insert(plain.to_string(), whole_value(held));
        } else {
            let is_open = end.other().of(words).is_empty();
            let held = |bound: &Bound<'_>| {
                let held = end.held_real(bound.number);
                let held = held.filter(|real| !(is_open && end.points_away(*real)));
                (bound.word, held.map(real_value))
            };
            let held: Vec<(&str, Option<Value>)> = bounds.iter().map(held).collect();
            for (word, value) in held {
                match value {
                    Some(value) => drop(words.insert(word.to_string(), value)),
                    None => drop(words.shift_remove(word)),
                }
            }
        }
    }
    if is_whole {
        close(words);
    }
    for word in ["const", "enum"] {
        if words.get(word).is_some_and(|value| inexact(value).is_some()) {
            words.shift_remove(word);
        }
    }
    // The library would look at both.
    if let Some(Value::Array(all)) = words.get_mut("type")
        && all.iter().any(|ty| ty == "number")
    {
        all.retain(|ty| ty != "integer");
    }
}

/// The library writes no whole numbers of nineteen digits without an end: they end where an i64 does.
fn close(words: &mut Map<String, Value>) {
    let bound = |word: &str| words.get(word).and_then(number::whole::<i128>);
    match (bound(LEAST[0]), bound(MOST[0])) {
        (Some(least), None) if least >= FAR => {
            words.insert(MOST[0].to_string(), whole_value(HIGHEST));
        }
        (None, Some(most)) if most <= -FAR => {
            words.insert(LEAST[0].to_string(), whole_value(LOWEST));
        }
        _ => {}
    }
}

/// A number that is held, which an i64 is.
fn whole_value(held: i128) -> Value {
    Value::from(held as i64)
}

fn real_value(held: f64) -> Value {
    if held.fract() == 0.0 && held.abs() <= -LOWEST as f64 {
        Value::from(held as i64)
    } else {
        Value::from(held)
    }
}

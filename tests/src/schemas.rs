//! JSON schemas of many kinds, made from a number, and an independent validator. So answers are checked by other code
//! than the code that constrains them.

use fancy_regex::Regex;
use serde_json::{Map, Value, json};

/// A source of numbers; equal seeds give equal schemas.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, n: u64) -> u64 {
        // The step of SplitMix64 and its mixing function.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n
    }
}

const PATTERNS: [&str; 6] = [
    "^[a-z]{2,5}$",
    "^[0-9]{4}-[0-9]{2}$",
    "^(yes|no|maybe)$",
    "^[A-Z][a-z]*$",
    "^\\d+\\.\\d$",
    "^#[0-9a-f]{6}$",
];
const FORMATS: [&str; 4] = ["date", "uuid", "ipv4", "time"];
const NAMES: [&str; 8] = ["a", "name", "id", "list", "a \"quoted\" one", "größe", "x-y", "next"];

/// Schema number `seed`: nested objects and lists, enums, patterns, formats, bounds, unions, references to
/// itself.
pub fn schema(seed: u64) -> Value {
    let mut numbers = Numbers(seed);
    match numbers.below(8) {
        0 => linked(&mut numbers),
        1 => tree(&mut numbers),
        _ => any(&mut numbers, 3),
    }
}

fn any(numbers: &mut Numbers, depth: u32) -> Value {
    let simple = if depth == 0 { 6 } else { 10 };
    match numbers.below(simple) {
        0 => integer(numbers),
        1 => string(numbers),
        2 => json!({ "type": "boolean" }),
        3 => json!({ "enum": [1, "two", null, true, { "three": [3] }] }),
        4 => json!({ "const": { "fixed": ["value", 1.5] } }),
        5 => json!({ "type": ["integer", "null"], "minimum": -9, "maximum": 9 }),
        6 => list(numbers, depth),
        7 => {
            json!({ "anyOf": [any(numbers, depth - 1), any(numbers, depth - 1), { "type": "null" }] })
        }
        _ => object(numbers, depth),
    }
}

fn integer(numbers: &mut Numbers) -> Value {
    let low = numbers.below(2000) as i64 - 1000;
    let high = low + numbers.below(5000) as i64;
    match numbers.below(4) {
        0 => json!({ "type": "integer", "minimum": 0, "maximum": 500, "multipleOf": 5 }),
        1 => json!({ "type": "number", "minimum": low, "maximum": high }),
        2 => json!({ "type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": high + 2 }),
        _ => json!({ "type": "integer", "minimum": low, "maximum": high }),
    }
}

fn string(numbers: &mut Numbers) -> Value {
    let pick = numbers.below(8) as usize;
    match numbers.below(4) {
        0 => json!({ "type": "string", "pattern": PATTERNS[pick % PATTERNS.len()] }),
        1 => json!({ "type": "string", "format": FORMATS[pick % FORMATS.len()] }),
        2 => json!({ "enum": &NAMES[..=pick] }),
        _ => json!({ "type": "string", "minLength": pick / 4, "maxLength": 3 + pick }),
    }
}

fn list(numbers: &mut Numbers, depth: u32) -> Value {
    let least = numbers.below(3);
    let items = any(numbers, depth - 1);
    match numbers.below(3) {
        0 => json!({
            "type": "array", "prefixItems": [any(numbers, depth - 1), any(numbers, depth - 1)],
            "items": false, "minItems": 2,
        }),
        _ => json!({ "type": "array", "items": items, "minItems": least, "maxItems": least + 2 }),
    }
}

fn object(numbers: &mut Numbers, depth: u32) -> Value {
    let mut properties = Map::new();
    for _ in 0..1 + numbers.below(4) {
        let name = NAMES[numbers.below(NAMES.len() as u64) as usize];
        properties.insert(name.to_string(), any(numbers, depth - 1));
    }
    let additional = match numbers.below(4) {
        0 => json!({ "type": "integer", "minimum": 0, "maximum": 99 }),
        _ => json!(false),
    };
    // A number of properties can be enforced where none of the named ones may be missing.
    let all = additional.is_object();
    let required: Vec<&String> =
        properties.keys().filter(|_| all || numbers.below(3) > 0).collect();
    let mut schema = json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": additional,
    });
    if additional.is_object() {
        schema["maxProperties"] = json!(required.len().max(1) + 2);
    }
    if numbers.below(5) == 0 {
        let extra = json!({ "properties": properties, "required": [required.first()] });
        if !required.is_empty() && !additional.is_object() {
            schema = json!({ "allOf": [schema, extra] });
        }
    }
    schema
}

fn linked(numbers: &mut Numbers) -> Value {
    json!({
        "$ref": "#/$defs/node",
        "$defs": { "node": {
            "type": "object",
            "properties": {
                "value": any(numbers, 1),
                "next": { "anyOf": [{ "type": "null" }, { "$ref": "#/$defs/node" }] },
            },
            "required": ["value", "next"], "additionalProperties": false,
        } },
    })
}

fn tree(numbers: &mut Numbers) -> Value {
    json!({
        "type": "object",
        "properties": {
            "label": string(numbers),
            "children": { "type": "array", "items": { "$ref": "#" }, "maxItems": 2 },
        },
        "required": ["label"], "additionalProperties": false,
    })
}

/// Why `value` does not fit `schema`; `None`: it does. Knows the keywords that [`schema`] makes, and panics at
/// others.
pub fn misfit(schema: &Value, value: &Value) -> Option<String> {
    check(schema, value, schema, "$")
}

fn check(schema: &Value, value: &Value, root: &Value, at: &str) -> Option<String> {
    let words = match schema {
        Value::Bool(true) => return None,
        Value::Bool(false) => return Some(format!("{at}: nothing may be here")),
        Value::Object(words) => words,
        other => panic!("{other} is no schema"),
    };
    words.iter().find_map(|(word, says)| keyword(word, says, words, value, root, at))
}

fn keyword(
    word: &str,
    says: &Value,
    words: &Map<String, Value>,
    value: &Value,
    root: &Value,
    at: &str,
) -> Option<String> {
    let fits = match word {
        "type" => match says {
            Value::Array(types) => types.iter().any(|name| is_type(value, name)),
            name => is_type(value, name),
        },
        "enum" => says.as_array().unwrap().contains(value),
        "const" => says == value,
        "$ref" => {
            let target = root.pointer(says.as_str().unwrap().trim_start_matches('#')).unwrap();
            return check(target, value, root, at);
        }
        "anyOf" => says.as_array().unwrap().iter().any(|one| check(one, value, root, at).is_none()),
        "allOf" => {
            return says.as_array().unwrap().iter().find_map(|one| check(one, value, root, at));
        }
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
            value.as_f64().is_none_or(|number| bound(word, number, says.as_f64().unwrap()))
        }
        "minLength" | "maxLength" | "pattern" | "format" => {
            value.as_str().is_none_or(|text| of_string(word, text, says))
        }
        "minItems" | "maxItems" | "items" | "prefixItems" => {
            let list = value.as_array()?;
            return of_list(word, list, says, words, root, at);
        }
        "properties" | "required" | "additionalProperties" | "maxProperties" => {
            let object = value.as_object()?;
            return of_object(word, object, says, words, root, at);
        }
        "$defs" => true,
        other => panic!("the validator does not know {other}"),
    };
    (!fits).then(|| format!("{at}: {value} does not fit {word}: {says}"))
}

fn is_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is no type"),
    }
}

fn bound(word: &str, number: f64, limit: f64) -> bool {
    match word {
        "minimum" => number >= limit,
        "maximum" => number <= limit,
        "exclusiveMinimum" => number > limit,
        "exclusiveMaximum" => number < limit,
        _ => (number / limit).fract() == 0.0,
    }
}

fn of_string(word: &str, text: &str, says: &Value) -> bool {
    let matches = |pattern: &str| Regex::new(pattern).unwrap().is_match(text).unwrap();
    match (word, says.as_str()) {
        ("minLength", _) => text.chars().count() as u64 >= says.as_u64().unwrap(),
        ("maxLength", _) => text.chars().count() as u64 <= says.as_u64().unwrap(),
        ("pattern", Some(pattern)) => matches(pattern),
        ("format", Some("date")) => matches(r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"),
        ("format", Some("uuid")) => {
            matches("^(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
        }
        ("format", Some("ipv4")) => text.parse::<std::net::Ipv4Addr>().is_ok(),
        ("format", Some("time")) => matches(
            r"^([01]\d|2[0-3]):[0-5]\d:([0-5]\d|60)(\.\d+)?([zZ]|[+-]([01]\d|2[0-3]):[0-5]\d)$",
        ),
        other => panic!("the validator does not know {other:?}"),
    }
}

fn of_list(
    word: &str,
    list: &[Value],
    says: &Value,
    words: &Map<String, Value>,
    root: &Value,
    at: &str,
) -> Option<String> {
    let n_prefix = words.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
    let one = |i: usize, schema| check(schema, &list[i], root, &format!("{at}[{i}]"));
    let fits = match word {
        "items" => return (n_prefix..list.len()).find_map(|i| one(i, says)),
        "prefixItems" => {
            let schemas = says.as_array().unwrap();
            return (0..list.len().min(n_prefix)).find_map(|i| one(i, &schemas[i]));
        }
        "minItems" => list.len() as u64 >= says.as_u64().unwrap(),
        _ => list.len() as u64 <= says.as_u64().unwrap(),
    };
    (!fits).then(|| format!("{at}: {} items do not fit {word}: {says}", list.len()))
}

fn of_object(
    word: &str,
    object: &Map<String, Value>,
    says: &Value,
    words: &Map<String, Value>,
    root: &Value,
    at: &str,
) -> Option<String> {
    let named = words.get("properties").and_then(Value::as_object);
    let one = |name: &String, schema| check(schema, &object[name], root, &format!("{at}.{name}"));
    let fits = match word {
        "properties" => {
            let there =
                says.as_object().unwrap().iter().filter(|(name, _)| object.contains_key(*name));
            return there.into_iter().find_map(|(name, schema)| one(name, schema));
        }
        "additionalProperties" => {
            let is_other = |name: &&String| named.is_none_or(|named| !named.contains_key(*name));
            return object.keys().filter(is_other).find_map(|name| one(name, says));
        }
        "required" => {
            says.as_array().unwrap().iter().all(|name| object.contains_key(name.as_str().unwrap()))
        }
        _ => object.len() as u64 <= says.as_u64().unwrap(),
    };
    (!fits).then(|| format!("{at}: does not fit {word}: {says}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_validator_finds_what_does_not_fit() {
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["a"],
            "properties": { "a": { "type": "array", "items": { "type": "integer", "maximum": 3 }, "minItems": 1 } },
        });
        assert_eq!(misfit(&schema, &json!({ "a": [1, 3] })), None);
        for value in [
            json!([]),
            json!({}),
            json!({ "a": [] }),
            json!({ "a": [4] }),
            json!({ "a": [1.5] }),
            json!({ "a": [1], "b": 1 }),
        ] {
            assert!(misfit(&schema, &value).is_some(), "{value}");
        }
        assert!(
            misfit(&json!({ "anyOf": [{ "const": 1 }, { "pattern": "^b$" }] }), &json!("a"))
                .is_some()
        );
    }

    #[test]
    fn there_are_schemas_of_every_kind() {
        let all: String = (0..200).map(|seed| super::schema(seed).to_string()).collect();
        for word in
            ["anyOf", "allOf", "$ref", "pattern", "format", "prefixItems", "enum", "multipleOf"]
        {
            assert!(all.contains(word), "{word}");
        }
    }
}

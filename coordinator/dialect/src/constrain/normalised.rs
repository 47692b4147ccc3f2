//! Normalises a schema for the grammar library: counts as integers, references without escapes, bounds that the
//! library's numbers represent exactly. The meaning stays the same.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::keywords::{MAPS, parts};
use super::{Refused, Strictness, bounds};
use crate::values::number;
use crate::values::pointer::pointed;

/// Most properties of an object that need not be there. Each of them may follow at every place, so that the steps of a
/// grammar grow with their number; properties that are required cost nothing.
pub const MAX_OPTIONAL_PROPERTIES: usize = 500;

/// Keywords that count something.
const COUNTS: [&str; 6] =
    ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"];

/// Words for people, which are left out: a number in them is nothing that has to be held.
const FOR_PEOPLE: [&str; 5] = ["$comment", "title", "description", "default", "examples"];

/// Begins the names of definitions that were added; a number follows.
const ADDED: &str = "brigade-ref-";

/// The schema in that form. With [`Strictness::Lenient`] bounds that cannot be held exactly become the next ones inwards.
///
/// # Errors
/// A count is invalid, a number cannot be represented, a reference leads nowhere, or there are too many optional
/// properties. The error names the path.
pub fn normal(path: &str, schema: &Value, strictness: Strictness) -> Result<Value, Refused> {
    check_part(path, schema, schema, strictness)?;
    let mut added = BTreeMap::new();
    let mut normal = rewritten(schema, schema, &mut added);
    if !added.is_empty()
        && let Some(words) = normal.as_object_mut()
    {
        let defs = words.entry("$defs").or_insert_with(|| json!({}));
        if let Some(defs) = defs.as_object_mut() {
            // A definition may name others, so that there is more to add until there is not.
            let mut n_done = 0;
            while n_done < added.len() {
                let names: Vec<(String, String)> = added
                    .iter()
                    .map(|(to, name): (&String, &String)| (to.clone(), name.clone()))
                    .collect();
                n_done = names.len();
                for (to, name) in names {
                    if !defs.contains_key(&name)
                        && let Some(target) = pointed(schema, &to)
                    {
                        let target = rewritten(target, schema, &mut added);
                        defs.insert(name, target);
                    }
                }
            }
        }
    }
    Ok(normal)
}

fn check_part(
    path: &str,
    schema: &Value,
    root: &Value,
    strictness: Strictness,
) -> Result<(), Refused> {
    let Some(words) = schema.as_object() else { return Ok(()) };
    let refuse = |word: &str, what: String| {
        let path = format!("{path}.{word}");
        Err(Refused::new(&path, format!("{path} {what}")))
    };
    for (word, value) in words {
        match word.as_str() {
            word if COUNTS.contains(&word) && number::whole::<u64>(value).is_none() => {
                return refuse(word, format!("is {value}: a whole number from 0 is needed"));
            }
            "$ref" => {
                let to = value.as_str().unwrap_or_default();
                if to.starts_with("#/") && pointed(root, to).is_none() {
                    return refuse(word, format!("is {value}, which points to nothing here"));
                }
            }
            _ => {}
        }
    }
    if let Some((word, what)) = bounds::not_held(words).filter(|_| strictness == Strictness::Strict)
    {
        return refuse(word, what);
    }
    let n_optional = n_optional(words);
    if n_optional > MAX_OPTIONAL_PROPERTIES {
        let what = format!(
            "has {n_optional} properties that are not required: at most {MAX_OPTIONAL_PROPERTIES} can be held; make \
             them required"
        );
        return refuse("properties", what);
    }
    parts(path, schema).try_for_each(|(path, part)| check_part(&path, part, root, strictness))
}

/// Properties of an object's schema that need not be there.
fn n_optional(words: &Map<String, Value>) -> usize {
    let required = words.get("required").and_then(Value::as_array).into_iter().flatten();
    let required: BTreeSet<&str> = required.filter_map(Value::as_str).collect();
    let all = words.get("properties").and_then(Value::as_object).into_iter().flatten();
    all.filter(|(name, _)| !required.contains(name.as_str())).count()
}

/// A part of a schema, with names for what its references with escapes point to.
fn rewritten(part: &Value, root: &Value, added: &mut BTreeMap<String, String>) -> Value {
    match part {
        Value::Object(words) => {
            let word = |(word, value): (&String, &Value)| {
                (word.clone(), rewritten_word(word, value, root, added))
            };
            let held = words.iter().filter(|(word, _)| !FOR_PEOPLE.contains(&word.as_str()));
            let mut words: Map<String, Value> = held.map(word).collect();
            bounds::rewrite(&mut words);
            Value::Object(words)
        }
        Value::Array(list) => list.iter().map(|part| rewritten(part, root, added)).collect(),
        other => other.clone(),
    }
}

fn rewritten_word(
    word: &str,
    value: &Value,
    root: &Value,
    added: &mut BTreeMap<String, String>,
) -> Value {
    match (word, value) {
        // A property may have any of these names.
        (word, Value::Object(parts)) if MAPS.contains(&word) => {
            let part =
                |(name, part): (&String, &Value)| (name.clone(), rewritten(part, root, added));
            Value::Object(parts.iter().map(part).collect())
        }
        ("enum" | "const" | "required", _) => value.clone(),
        ("$ref", Value::String(to)) if to.contains(['%', '~']) && pointed(root, to).is_some() => {
            let n = added.len();
            let name = added.entry(to.clone()).or_insert_with(|| free_name(root, n));
            Value::String(format!("#/$defs/{name}"))
        }
        (word, Value::Number(_)) if COUNTS.contains(&word) => {
            number::whole::<u64>(value).map_or_else(|| value.clone(), Value::from)
        }
        _ => rewritten(value, root, added),
    }
}

/// A name that no definition has.
fn free_name(root: &Value, from: usize) -> String {
    let defs = root.get("$defs");
    let is_free = |name: &String| defs.and_then(|defs| defs.get(name)).is_none();
    let mut names = (from..).map(|n| format!("{ADDED}{n}"));
    names.find(is_free).unwrap_or_else(|| unreachable!("numbers do not end"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_with_escapes_get_names_without() {
        let schema = json!({
            "properties": { "a": { "$ref": "#/$defs/a~1b" }, "b": { "$ref": "#/$defs/plain" },
                            "default": { "$ref": "#/$defs/a~1b" } },
            "$defs": {
                "a/b": { "anyOf": [{ "$ref": "#/$defs/a~1b" }, { "$ref": "#/$defs/c%20d" }] },
                "c d": { "const": "#/$defs/a~1b" },
                "plain": { "type": "string" },
            },
        });
        let normal = normal("s", &schema, Strictness::Strict).unwrap();
        assert_eq!(normal["properties"]["a"]["$ref"], "#/$defs/brigade-ref-0");
        assert_eq!(normal["properties"]["b"]["$ref"], "#/$defs/plain");
        assert_eq!(normal["properties"]["default"]["$ref"], "#/$defs/brigade-ref-0");
        let [one, other] = [0, 1].map(|i| &normal["$defs"]["brigade-ref-0"]["anyOf"][i]["$ref"]);
        assert_eq!(
            (one, other),
            (&json!("#/$defs/brigade-ref-0"), &json!("#/$defs/brigade-ref-1"))
        );
        assert_eq!(normal["$defs"]["brigade-ref-1"]["const"], "#/$defs/a~1b");
    }

    #[test]
    fn counts_are_whole_numbers() {
        let schema = json!({
            "maxLength": 5.0, "minItems": 2, "items": { "maximum": 3.0 },
            "properties": { "maxLength": { "maximum": 0.5 } },
        });
        let normal = normal("s", &schema, Strictness::Strict).unwrap();
        assert_eq!(normal["maxLength"].to_string(), "5");
        assert_eq!(normal["items"].to_string(), r#"{"maximum":3}"#);
        assert_eq!(normal["properties"]["maxLength"]["maximum"], json!(0.5));
    }

    #[test]
    fn what_cannot_be_held_is_named() {
        for (schema, path) in [
            (json!({ "maxLength": 2.5 }), "s.maxLength"),
            (json!({ "properties": { "a": { "minItems": -1 } } }), "s.properties.a.minItems"),
            (json!({ "items": { "maxLength": "5" } }), "s.items.maxLength"),
            (json!({ "items": { "maximum": i64::MIN } }), "s.items.maximum"),
            (json!({ "properties": { "a": { "const": i64::MAX - 1 } } }), "s.properties.a.const"),
            (json!({ "anyOf": [{ "$ref": "#/$defs/x" }] }), "s.anyOf[0].$ref"),
        ] {
            assert_eq!(normal("s", &schema, Strictness::Strict).unwrap_err().path, path);
        }
        let wide = |n: usize| -> Value {
            json!({ "properties": (0..n).map(|i| (format!("p{i}"), json!({}))).collect::<Map<_, _>>() })
        };
        assert!(normal("s", &wide(MAX_OPTIONAL_PROPERTIES), Strictness::Strict).is_ok());
        let refused =
            normal("s", &wide(MAX_OPTIONAL_PROPERTIES + 1), Strictness::Strict).unwrap_err();
        assert!(
            refused.path == "s.properties" && refused.message.contains("at most 500"),
            "{refused}"
        );
        let mut required = wide(5000);
        let names: Vec<Value> = (0..5000).map(|i| json!(format!("p{i}"))).collect();
        required.as_object_mut().unwrap().insert("required".to_string(), names.into());
        assert!(normal("s", &required, Strictness::Strict).is_ok());
    }
}

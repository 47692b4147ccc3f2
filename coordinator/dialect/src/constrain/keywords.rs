//! The keywords of JSON Schema that contain schemas, and iteration over these.

use serde_json::Value;

/// Keywords whose value is a schema, a list of schemas, or an object of schemas.
const SCHEMAS: &[&str] = &["items", "additionalItems", "additionalProperties"];
const LISTS: &[&str] = &["anyOf", "oneOf", "allOf", "prefixItems", "items"];
/// Keywords whose value is an object of schemas.
pub const MAPS: &[&str] = &["properties", "patternProperties", "$defs", "definitions"];

/// The schemas that a schema is made of, with their paths.
pub fn parts<'a>(path: &str, schema: &'a Value) -> impl Iterator<Item = (String, &'a Value)> {
    let mut all = Vec::new();
    for (word, value) in schema.as_object().into_iter().flatten() {
        let path = format!("{path}.{word}");
        match value {
            Value::Array(list) if LISTS.contains(&word.as_str()) => {
                all.extend(list.iter().enumerate().map(|(i, part)| (format!("{path}[{i}]"), part)));
            }
            Value::Object(map) if MAPS.contains(&word.as_str()) => {
                all.extend(map.iter().map(|(name, part)| (format!("{path}.{name}"), part)));
            }
            _ if SCHEMAS.contains(&word.as_str()) => all.push((path, value)),
            _ => {}
        }
    }
    all.into_iter()
}

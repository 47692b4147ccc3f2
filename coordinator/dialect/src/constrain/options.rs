//! Options for the grammar library beside the schema.

use serde_json::{Map, Value, json};

use super::Strictness;

/// White space between the values of an answer: at most a space, or a line break and its indentation.
const WHITE_SPACE: &str = r" |\n[ \t]{0,20}";

/// The schema with the options that the grammar library reads from it.
pub fn with_options(schema: &Value, strictness: Strictness) -> Value {
    let mut schema = match schema {
        Value::Object(schema) => schema.clone(),
        Value::Bool(false) => Map::from_iter([("enum".to_string(), json!([]))]),
        _ => Map::new(),
    };
    let lenient = strictness == Strictness::Lenient;
    let options = json!({
        "whitespace_pattern": WHITE_SPACE, "lenient": lenient, "coerce_one_of": lenient,
    });
    schema.insert("x-guidance".to_string(), options);
    Value::Object(schema)
}

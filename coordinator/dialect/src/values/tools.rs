//! The tools of a request: their names, and the JSON types of their arguments.
//!
//! Some formats write an argument's value without its type: `5` may be a number or a string. Then the tool's
//! schema decides, and where it does not say, the value itself.

use serde_json::{Map, Value};

use super::json;
use super::pointer::pointed;

/// Steps through `$ref`, `anyOf` and the like before a schema counts as saying nothing.
const MAX_SCHEMA_STEPS: usize = 16;

/// One function that the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// The tool's name.
    pub name: String,
    /// The JSON schema of its arguments; `Null`: the tool has no schema.
    pub parameters: Value,
    /// Whether its arguments must match the schema.
    pub strict: bool,
}

/// The functions of one request, in the request's order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tools(Vec<Tool>);

/// JSON types that a schema allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Types {
    string: bool,
    number: bool,
    boolean: bool,
    null: bool,
    nested: bool,
}

impl Types {
    const STRING: Self =
        Self { string: true, number: false, boolean: false, null: false, nested: false };

    /// Whether a value can be nothing but a string.
    pub fn is_string(self) -> bool {
        self == Self::STRING
    }

    /// All types.
    pub fn all() -> Self {
        Self { string: true, number: true, boolean: true, null: true, nested: true }
    }

    /// Whether a value may have the type that JSON Schema calls so.
    pub fn has(self, name: &str) -> bool {
        let mut one = Self::default();
        one.add(name);
        (self.string && one.string)
            || (self.number && one.number)
            || (self.boolean && one.boolean)
            || (self.null && one.null)
            || (self.nested && one.nested)
    }

    fn is_empty(self) -> bool {
        self == Self::default()
    }

    /// Adds the one that JSON Schema calls so.
    pub fn add(&mut self, name: &str) {
        match name {
            "string" => self.string = true,
            "number" | "integer" => self.number = true,
            "boolean" => self.boolean = true,
            "null" => self.null = true,
            "object" | "array" => self.nested = true,
            _ => {}
        }
    }

    fn add_value(&mut self, value: &Value) {
        match value {
            Value::String(_) => self.string = true,
            Value::Number(_) => self.number = true,
            Value::Bool(_) => self.boolean = true,
            Value::Null => self.null = true,
            Value::Array(_) | Value::Object(_) => self.nested = true,
        }
    }

    fn allows(self, value: &Value) -> bool {
        match value {
            Value::String(_) => self.string,
            Value::Number(_) => self.number,
            Value::Bool(_) => self.boolean,
            Value::Null => self.null,
            Value::Array(_) | Value::Object(_) => self.nested,
        }
    }
}

impl Tools {
    /// The tools of a request.
    pub fn new(tools: Vec<Tool>) -> Self {
        Self(tools)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All tools, in the request's order.
    pub fn iter(&self) -> impl Iterator<Item = &Tool> {
        self.0.iter()
    }

    /// The tool called `name`.
    pub fn get(&self, name: &str) -> Option<&Tool> {
        self.0.iter().find(|tool| tool.name == name)
    }

    /// The types that argument `key` of tool `name` may have; none if that is not known.
    pub fn types(&self, name: &str, key: &str) -> Option<Types> {
        let schema = &self.get(name)?.parameters;
        let mut types = Types::default();
        collect_of(key, schema, schema, &mut types, &mut MAX_SCHEMA_STEPS.clone());
        (!types.is_empty()).then_some(types)
    }

    /// The name of argument number `at` of tool `name`, for calls that name none.
    pub fn key_at(&self, name: &str, at: usize) -> Option<&str> {
        properties(&self.get(name)?.parameters)?.keys().nth(at).map(String::as_str)
    }
}

/// The types that a schema allows; `root` is where its `$ref`s point into. `None`: the schema does not restrict
/// types.
pub fn types_of(schema: &Value, root: &Value) -> Option<Types> {
    let mut types = Types::default();
    collect(schema, root, &mut types, &mut MAX_SCHEMA_STEPS.clone());
    (!types.is_empty()).then_some(types)
}

/// The value's type by a tag's attributes: `string="true"` or `type="number"`.
pub fn types_of_attributes(attributes: &str) -> Option<Types> {
    let value = |name: &str| {
        let (_, rest) = attributes.split_once(&format!("{name}=\""))?;
        rest.split('"').next()
    };
    if let Some(string) = value("string") {
        let others = Types { string: false, number: true, boolean: true, null: true, nested: true };
        return Some(if string == "true" { Types::STRING } else { others });
    }
    let mut types = Types::default();
    types.add(value("type")?);
    (!types.is_empty()).then_some(types)
}

fn properties(schema: &Value) -> Option<&Map<String, Value>> {
    schema.get("properties")?.as_object()
}

/// Adds what an object's schema allows for its property `key`, in any of its unions.
fn collect_of(key: &str, schema: &Value, root: &Value, types: &mut Types, steps: &mut usize) {
    if *steps == 0 {
        return;
    }
    *steps -= 1;
    if let Some(property) = properties(schema).and_then(|all| all.get(key)) {
        collect(property, root, types, steps);
    }
    if let Some(path) = schema.get("$ref").and_then(Value::as_str)
        && let Some(target) = pointed(root, path)
    {
        collect_of(key, target, root, types, steps);
    }
    for list in ["anyOf", "oneOf", "allOf"] {
        let schemas = schema.get(list).and_then(Value::as_array).into_iter().flatten();
        schemas.for_each(|inner| collect_of(key, inner, root, types, steps));
    }
}

/// Adds what `schema` allows; `root` is where its `$ref`s point into.
fn collect(schema: &Value, root: &Value, types: &mut Types, steps: &mut usize) {
    if *steps == 0 {
        return;
    }
    *steps -= 1;
    if let Some(path) = schema.get("$ref").and_then(Value::as_str)
        && let Some(target) = pointed(root, path)
    {
        collect(target, root, types, steps);
    }
    match schema.get("type") {
        Some(Value::String(name)) => types.add(name),
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).for_each(|name| types.add(name));
        }
        _ => {}
    }
    if schema.get("nullable") == Some(&Value::Bool(true)) {
        types.null = true;
    }
    if schema.get("type").is_none() {
        let listed = schema.get("enum").and_then(Value::as_array).into_iter().flatten();
        listed.chain(schema.get("const")).for_each(|value| types.add_value(value));
        if schema.get("properties").is_some() || schema.get("items").is_some() {
            types.nested = true;
        }
    }
    for list in ["anyOf", "oneOf", "allOf"] {
        let schemas = schema.get(list).and_then(Value::as_array).into_iter().flatten();
        schemas.for_each(|inner| collect(inner, root, types, steps));
    }
}

/// A value as it was written, as JSON text. A value that fits no allowed type becomes a string, so that the client
/// sees what the model wrote.
pub fn to_json(raw: &str, types: Option<Types>) -> String {
    let as_string = || Value::from(raw).to_string();
    if types.is_some_and(Types::is_string) {
        return as_string();
    }
    let strict = |text: &str| serde_json::from_str::<Value>(text).ok();
    match types {
        Some(types) if !types.string => {
            let trimmed = raw.trim();
            // Models write Python's words here, even where the format has JSON's.
            let lower = trimmed.to_ascii_lowercase();
            let word = match lower.as_str() {
                "true" | "false" => lower.as_str(),
                "none" | "null" => "null",
                _ => trimmed,
            };
            match json::mend(word) {
                Some(text) if strict(&text).is_some_and(|v| types.allows(&v)) => text,
                _ => as_string(),
            }
        }
        _ => match strict(raw.trim()) {
            Some(Value::String(_)) | None => as_string(),
            Some(value) if types.is_none_or(|types| types.allows(&value)) => raw.trim().to_string(),
            Some(_) => as_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tools() -> Tools {
        let parameters = json!({
            "type": "object",
            "$defs": { "size": { "anyOf": [{ "type": "integer" }, { "type": "null" }] } },
            "properties": {
                "text": { "type": "string" },
                "count": { "type": "integer" },
                "maybe": { "type": ["string", "null"] },
                "size": { "$ref": "#/$defs/size" },
                "unit": { "enum": ["c", "f"] },
                "list": { "type": "array", "items": {} },
                "flag": { "type": "boolean" },
                "any": {},
            },
        });
        Tools::new(vec![Tool { name: "f".to_string(), parameters, strict: false }])
    }

    #[test]
    fn the_schema_says_what_a_value_is() {
        let tools = tools();
        for (key, raw, want) in [
            ("text", "5", json!("5")),
            ("text", "true", json!("true")),
            ("count", "5", json!(5)),
            ("count", " 5\n", json!(5)),
            ("count", "five", json!("five")),
            ("maybe", "null", json!(null)),
            ("maybe", "5", json!("5")),
            ("size", "7", json!(7)),
            ("size", "None", json!(null)),
            ("unit", "c", json!("c")),
            ("list", "[1, 'a', True]", json!([1, "a", true])),
            ("list", "{\"a\": 1}", json!({"a": 1})),
            ("flag", "True", json!(true)),
            ("any", "5", json!(5)),
            ("any", "x y", json!("x y")),
            ("not there", "{\"a\": [1]}", json!({"a": [1]})),
            ("not there", "\"quoted\"", json!("\"quoted\"")),
        ] {
            let got = to_json(raw, tools.types("f", key));
            let got: Value = serde_json::from_str(&got).unwrap_or_else(|e| panic!("{got}: {e}"));
            assert_eq!(got, want, "{key}: {raw}");
        }
        assert_eq!(tools.key_at("f", 1), Some("count"));
        assert_eq!(tools.types("g", "text"), None);
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let parameters = json!({ "properties": { "a": { "$ref": "#/properties/a" } } });
        let tools = Tools::new(vec![Tool { name: "f".to_string(), parameters, strict: false }]);
        assert_eq!(tools.types("f", "a"), None);
    }
}

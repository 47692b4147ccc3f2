//! Request fields that constrain an answer's form: `response_format`, vLLM's `guided_*` and `structured_outputs`,
//! llama.cpp's `grammar` and `json_schema`.

use brigade_dialect::constrain::{Form, FormKind, MAX_ALTERNATIVES, Refused, Strictness};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::request::fields::{Fields, Given, Kind, Unread, list, read, tree};

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        Self::unsupported(refused.path, refused.message)
    }
}

/// Reads the form that a request asks for, if it asks for one.
pub fn form(fields: &mut Fields<'_>, left: &mut usize) -> Result<Option<Form>, ApiError> {
    let mut all: Vec<Form> = Vec::new();
    if let Some(raw) = fields.raw("response_format") {
        all.extend(response_format("response_format", raw, left)?);
    }
    guided(fields, "guided_", left, &mut all)?;
    if let Some(raw) = fields.raw("structured_outputs") {
        let mut inner = Fields::nested("structured_outputs", raw)?;
        guided(&mut inner, "", left, &mut all)?;
        inner.refuse("structural_tag", "use tools that are strict")?;
        inner.end("structured_outputs", &[STRUCTURED]);
    }
    if let Some(raw) = fields.raw("json_schema") {
        all.push(schema("json_schema", raw, left, Strictness::Strict)?);
    }
    if let Some(text) = fields.take::<String>("grammar")?.filter(|text| !text.is_empty()) {
        all.push(grammar(fields.path("grammar"), text));
    }
    match all.len() {
        0 | 1 => Ok(all.pop()),
        _ => {
            let message = format!("{} and {} exclude each other", all[0].path, all[1].path);
            Err(ApiError::field(all[1].path.clone(), message))
        }
    }
}

/// Fields of `structured_outputs` that are ignored.
const STRUCTURED: Unread = &[
    ("disable_fallback", "this server has one way to hold an answer to a form"),
    ("disable_any_whitespace", "the form itself says where white space may stand"),
    ("disable_additional_properties", "the schema says it"),
    ("whitespace_pattern", "the form itself says where white space may stand"),
];

/// vLLM's fields, with or without their prefix.
fn guided(
    fields: &mut Fields<'_>,
    prefix: &str,
    left: &mut usize,
    all: &mut Vec<Form>,
) -> Result<(), ApiError> {
    let name = |word: &str| format!("{prefix}{word}");
    if let Some(raw) = fields.raw(&name("json")) {
        all.push(schema(&fields.path(&name("json")), raw, left, Strictness::Strict)?);
    }
    if fields.take::<bool>(&name("json_object"))?.unwrap_or(false) {
        all.push(Form::any_object(&fields.path(&name("json_object"))));
    }
    if let Some(regex) = fields.take::<String>(&name("regex"))? {
        all.push(Form { path: fields.path(&name("regex")), kind: FormKind::Regex(regex) });
    }
    if let Some(raw) = fields.raw(&name("choice")) {
        let path = fields.path(&name("choice"));
        let texts = list(&path, raw, MAX_ALTERNATIVES)?;
        let texts = texts.into_iter().map(|text| read(&path, text)).collect::<Result<_, _>>()?;
        all.push(Form { path, kind: FormKind::Choice(texts) });
    }
    if let Some(text) = fields.take::<String>(&name("grammar"))? {
        all.push(grammar(fields.path(&name("grammar")), text));
    }
    Ok(())
}

/// `{"type": ...}`, where it asks for anything but text. OpenAI's two APIs put the schema in different places.
pub fn response_format(
    path: &str,
    raw: Given<'_>,
    left: &mut usize,
) -> Result<Option<Form>, ApiError> {
    let mut format = Fields::nested(path, raw)?;
    let word: String = format.require("type")?;
    let form = match word.as_str() {
        "text" => None,
        // llama.cpp takes a schema here too.
        "json_object" => Some(match format.raw("schema") {
            Some(raw) => schema(&format.path("schema"), raw, left, Strictness::Strict)?,
            None => Form::any_object(path),
        }),
        "json_schema" => Some(match format.raw("json_schema") {
            Some(raw) => {
                let mut named = Fields::nested(&format.path("json_schema"), raw)?;
                let form = named_schema(&mut named, left)?;
                named.end(RESPONSE_FORMAT, &[]);
                form
            }
            None => named_schema(&mut format, left)?,
        }),
        "regex" | "grammar" => {
            let field = if word == "regex" { "pattern" } else { "grammar" };
            let text: String = format.require(field)?;
            let path = format.path(field);
            let kind = FormKind::Regex(text.clone());
            Some(if word == "regex" { Form { path, kind } } else { grammar(path, text) })
        }
        _ => {
            let path = format.path("type");
            let message = format!(
                "{path} is {word:?}: \"text\", \"json_object\" or \"json_schema\" is supported"
            );
            return Err(ApiError::unsupported(path, message));
        }
    };
    // A field of another type would be a constraint that is not enforced.
    for field in OF_TYPES {
        format.refuse(field, &format!("it has no effect where type is {word:?}: leave it out"))?;
    }
    format.end(RESPONSE_FORMAT, &[]);
    Ok(form)
}

/// The same as a tree, for the chat that a request becomes. Unknown fields are left out; the log has named them.
pub fn checked_format(path: &str, raw: Given<'_>, left: &mut usize) -> Result<Value, ApiError> {
    // Errors name the field inside.
    response_format(path, raw, left)?;
    let mut format = tree(path, raw, left)?;
    let is_known = |name: &str| name == "type" || OF_TYPES.contains(&name);
    if let Some(fields) = format.as_object_mut() {
        fields.retain(|name, _| is_known(name));
        if let Some(named) = fields.get_mut("json_schema").and_then(Value::as_object_mut) {
            named.retain(|name, _| is_known(name));
        }
    }
    Ok(format)
}

/// Fields that belong to one type of format.
const OF_TYPES: [&str; 5] = ["json_schema", "schema", "pattern", "grammar", "strict"];

/// The name of these fields in the log.
const RESPONSE_FORMAT: &str = "response_format";

/// A schema with its name.
fn named_schema(named: &mut Fields<'_>, left: &mut usize) -> Result<Form, ApiError> {
    named.leave::<String>("name", "an answer has one form, and needs no name for it")?;
    named.leave::<String>(
        "description",
        "the answer is held to the schema, and the model told nothing",
    )?;
    // Without `strict`, the schema is enforced.
    let strict = named.take("strict")?.unwrap_or(true);
    let strictness = if strict { Strictness::Strict } else { Strictness::Lenient };
    let raw = named.require_raw("schema")?;
    schema(&named.path("schema"), raw, left, strictness)
}

/// A schema as an object, or as its text.
pub fn schema(
    path: &str,
    raw: Given<'_>,
    left: &mut usize,
    strictness: Strictness,
) -> Result<Form, ApiError> {
    let schema = match raw.kind() {
        Kind::Text => {
            let text: String = read(path, raw)?;
            let inner: Box<RawValue> = serde_json::from_str(&text).map_err(|error| {
                let (line, column) = (error.line(), error.column());
                let message = format!(
                    "{path} holds no JSON schema: its text is not JSON from line {line}, column {column} on"
                );
                ApiError::field(path, message)
            })?;
            tree(path, Given::Text(&inner), left)?
        }
        _ => tree(path, raw, left)?,
    };
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        let message = format!("{path} must be a JSON schema: an object");
        return Err(ApiError::field(path, message));
    }
    Ok(Form { path: path.to_string(), kind: FormKind::Schema(schema, strictness) })
}

/// A grammar with `::=` is llama.cpp's; any other is Lark.
fn grammar(path: String, text: String) -> Form {
    let is_gbnf = text.contains("::=");
    Form { path, kind: if is_gbnf { FormKind::Gbnf(text) } else { FormKind::Lark(text) } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Option<Form>, String> {
        let mut fields = Fields::parse(json.as_bytes()).unwrap();
        form(&mut fields, &mut 1000)
            .map_err(|e| e.body()["error"]["message"].as_str().unwrap().to_string())
    }

    #[test]
    fn forms_come_in_many_fields() {
        let schema = r#"{"type": "integer"}"#;
        for (json, path) in [
            (r#"{"response_format": {"type": "json_object"}}"#.to_string(), "response_format"),
            (
                format!(
                    r#"{{"response_format": {{"type": "json_schema", "json_schema":
                        {{"name": "x", "strict": true, "schema": {schema}}}}}}}"#
                ),
                "response_format.json_schema.schema",
            ),
            (
                format!(r#"{{"response_format": {{"type": "json_schema", "schema": {schema}}}}}"#),
                "response_format.schema",
            ),
            (format!(r#"{{"guided_json": {schema}}}"#), "guided_json"),
            (r#"{"guided_json": "{\"type\": \"integer\"}"}"#.to_string(), "guided_json"),
            (r#"{"guided_regex": "[0-9]+"}"#.to_string(), "guided_regex"),
            (r#"{"guided_choice": ["a", "b"]}"#.to_string(), "guided_choice"),
            (r#"{"guided_grammar": "start: \"a\""}"#.to_string(), "guided_grammar"),
            (r#"{"grammar": "root ::= \"a\""}"#.to_string(), "grammar"),
            (
                r#"{"structured_outputs": {"choice": ["a"]}}"#.to_string(),
                "structured_outputs.choice",
            ),
        ] {
            let form = read(&json).unwrap().unwrap();
            assert_eq!(form.path, path);
            form.grammar().unwrap();
        }
        assert_eq!(read(r#"{"response_format": {"type": "text"}, "grammar": ""}"#), Ok(None));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (json, word) in [
            (r#"{"response_format": {"type": "xml"}}"#, "\"xml\""),
            (r#"{"response_format": {"type": "json_schema"}}"#, "response_format.schema is"),
            (r#"{"guided_regex": "a", "guided_choice": ["a"]}"#, "exclude each other"),
            (r#"{"guided_json": "{"}"#, "guided_json holds no JSON schema"),
            (r#"{"guided_json": 3}"#, "an object"),
            (r#"{"guided_choice": "a"}"#, "guided_choice"),
        ] {
            let message = read(json).unwrap_err();
            assert!(message.contains(word), "{json}: {message}");
        }
    }
}

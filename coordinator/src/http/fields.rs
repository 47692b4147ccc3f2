//! Reading a JSON request body field by field, so that every complaint names the field.
//!
//! Unknown fields are left alone: client libraries send new ones every month. Those that would
//! change the meaning of the answer are refused by name where they are known ([`Fields::refuse`]).

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::ApiError;

/// The fields of a JSON object that have not been read yet.
#[derive(Debug)]
pub struct Fields {
    map: Map<String, Value>,
    /// Where the object sits in the body, as a prefix for names: `messages[2].`.
    prefix: String,
}

impl Fields {
    /// Parses a whole request body.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(map)) => Ok(Self { map, prefix: String::new() }),
            Ok(other) => Err(ApiError::bad_request(format!(
                "the request body must be a JSON object, not {}",
                kind(&other)
            ))),
            Err(e) => {
                Err(ApiError::bad_request(format!("the request body is not valid JSON: {e}")))
            }
        }
    }

    /// An object inside the body; `path` is its name there.
    pub fn nested(path: &str, value: Value) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, prefix: format!("{path}.") }),
            other => Err(ApiError::field(
                path,
                format!("{path} must be an object, not {}", kind(&other)),
            )),
        }
    }

    /// The full name of a field of this object.
    pub fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// Removes a field; `null` counts as absent.
    pub fn raw(&mut self, name: &str) -> Option<Value> {
        self.map.shift_remove(name).filter(|v| !v.is_null())
    }

    /// Reads an optional field of type `T`.
    pub fn take<T: DeserializeOwned>(&mut self, name: &str) -> Result<Option<T>, ApiError> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        serde_json::from_value(value).map(Some).map_err(|e| {
            let path = self.path(name);
            ApiError::field(&path, format!("{path}: {e}"))
        })
    }

    /// Reads a field that has several names, the first one present.
    pub fn take_any<T: DeserializeOwned>(&mut self, names: &[&str]) -> Result<Option<T>, ApiError> {
        for name in names {
            if let Some(value) = self.take(name)? {
                return Ok(Some(value));
            }
        }
        Ok(None)
    }

    /// Reads a field that must be there.
    pub fn require<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, ApiError> {
        self.take(name)?.ok_or_else(|| {
            let path = self.path(name);
            ApiError::field(&path, format!("{path} is required"))
        })
    }

    /// Refuses a field that would change the answer and that this server does not implement.
    /// Values that ask for nothing (`false`, `[]`, `{}`) pass.
    pub fn refuse(&mut self, name: &str, why: &str) -> Result<(), ApiError> {
        match self.raw(name) {
            None | Some(Value::Bool(false)) => Ok(()),
            Some(Value::Array(a)) if a.is_empty() => Ok(()),
            Some(Value::Object(o)) if o.is_empty() => Ok(()),
            Some(_) => {
                let path = self.path(name);
                Err(ApiError::unsupported(&path, format!("{path} is not supported: {why}")))
            }
        }
    }

    /// What is left, in order.
    pub fn into_rest(self) -> Map<String, Value> {
        self.map
    }
}

/// What a JSON value is, for messages.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(error: ApiError) -> String {
        error.body()["error"]["message"].as_str().unwrap().to_string()
    }

    #[test]
    fn complaints_name_the_field() {
        let mut fields =
            Fields::parse(br#"{"temperature": "hot", "n": null, "tools": [1]}"#).unwrap();
        let error = fields.take::<f32>("temperature").unwrap_err();
        assert_eq!(error.body()["error"]["param"], "temperature");
        assert_eq!(fields.take::<u32>("n").unwrap(), None);
        assert!(message(fields.refuse("tools", "no").unwrap_err()).contains("tools"));
        assert!(
            message(fields.require::<u32>("prompt").unwrap_err()).contains("prompt is required")
        );
    }

    #[test]
    fn bodies_that_are_not_objects() {
        assert!(message(Fields::parse(b"[1]").unwrap_err()).contains("an array"));
        assert!(message(Fields::parse(b"{\"a\": ").unwrap_err()).contains("not valid JSON"));
    }

    #[test]
    fn empty_lists_ask_for_nothing() {
        let mut fields = Fields::parse(br#"{"tools": []}"#).unwrap();
        assert!(fields.refuse("tools", "no").is_ok());
    }
}

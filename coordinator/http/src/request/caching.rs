//! Fields about prompt caching: whose kept prompts a request may reuse, and the positions at which prompts are likely
//! to differ.
//!
//! Anthropic's `cache_control` marks a block up to which a prompt is to be kept; many programs send it in chats as
//! well. This server finds equal beginnings of prompts without marks. Where a model has recurrent layers, it keeps a
//! state at the mark.

use brigade_dialect::{Marked, TextEnd};
use serde_json::{Value, json};

use crate::error::ApiError;
use crate::request::fields::{Fields, Given};

/// The field that marks a block.
pub(crate) const CACHE_CONTROL: &str = "cache_control";

/// Most blocks that a request may mark, as in Anthropic's API.
const MAX_MARKED: usize = 4;

/// Lifetimes that clients may ask for. They have no effect: eviction goes by use.
const TTLS: [&str; 2] = ["5m", "1h"];

/// The marks of a chat, collected while it is read.
#[derive(Debug, Default)]
pub(crate) struct Marking {
    n: usize,
    marked: Marked,
}

impl Marking {
    /// The collected marks.
    pub fn into_marked(self) -> Marked {
        self.marked
    }

    /// Takes the mark of an object; whether there is one.
    pub fn take(&mut self, fields: &mut Fields<'_>) -> Result<bool, ApiError> {
        match fields.raw(CACHE_CONTROL) {
            None => Ok(false),
            Some(raw) => self.count(&fields.path(CACHE_CONTROL), raw).map(|()| true),
        }
    }

    /// The same of a block that was read as a tree.
    pub fn is_on(&mut self, path: &str, block: &Value) -> Result<bool, ApiError> {
        let Some(control) = block.get(CACHE_CONTROL).filter(|control| !control.is_null()) else {
            return Ok(false);
        };
        let path = format!("{path}.{CACHE_CONTROL}");
        self.count(&path, Given::Tree(control)).map(|()| true)
    }

    /// Marks the end of the tools' definitions.
    pub fn tools(&mut self) {
        self.marked.tools = true;
    }

    /// The text of a message is marked, up to so many bytes.
    pub fn text(&mut self, message: usize, bytes: usize) {
        self.marked.ends.push(TextEnd { message, bytes });
    }

    fn count(&mut self, path: &str, raw: Given<'_>) -> Result<(), ApiError> {
        let mut control = Fields::nested(path, raw)?;
        let kind: String = control.require("type")?;
        if kind != "ephemeral" {
            let path = control.path("type");
            return Err(ApiError::field(&path, format!("{path} must be \"ephemeral\"")));
        }
        let ttl: Option<String> = control.take("ttl")?;
        if ttl.is_some_and(|ttl| !TTLS.contains(&ttl.as_str())) {
            let path = control.path("ttl");
            return Err(ApiError::field(&path, format!("{path} must be {}", TTLS.join(" or "))));
        }
        control.end(CACHE_CONTROL, &[]);
        self.n += 1;
        if self.n > MAX_MARKED {
            let message =
                format!("at most {MAX_MARKED} blocks may have {CACHE_CONTROL}: unmark others");
            Err(ApiError::field(path, message))
        } else {
            Ok(())
        }
    }
}

/// A mark as a chat has it.
pub(crate) fn mark() -> Value {
    json!({ "type": "ephemeral" })
}

/// Marks an object of a chat's.
pub(crate) fn put_mark(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert(CACHE_CONTROL.to_string(), mark());
    }
}

/// An object of a chat's without its mark: a template would write it.
pub(crate) fn unmarked(object: &mut Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove(CACHE_CONTROL);
    }
}

/// Limit of the bytes of `cache_salt`.
const MAX_CACHE_SALT_BYTES: usize = 256;

/// vLLM's field: a text that narrows whose prompts this one may begin with.
pub(crate) fn cache_salt(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let salt: Option<String> = fields.take("cache_salt")?;
    match salt.as_ref().map(String::len) {
        None | Some(1..=MAX_CACHE_SALT_BYTES) => Ok(salt),
        Some(n) => {
            let message = format!(
                "cache_salt has {n} bytes: 1 to {MAX_CACHE_SALT_BYTES} are needed; leave it out for none"
            );
            Err(ApiError::field("cache_salt", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_checked_and_counted() {
        let take = |marking: &mut Marking, control: &str| {
            let body = format!(r#"{{"cache_control": {control}}}"#);
            marking
                .take(&mut Fields::parse(body.as_bytes()).unwrap())
                .map_err(|error| error.body().to_string())
        };
        let mut marking = Marking::default();
        assert_eq!(take(&mut marking, "null"), Ok(false));
        for control in [r#"{"type": "ephemeral"}"#, r#"{"type": "ephemeral", "ttl": "1h"}"#] {
            assert_eq!(take(&mut marking, control), Ok(true));
            assert_eq!(take(&mut marking, control), Ok(true));
        }
        let more = take(&mut marking, r#"{"type": "ephemeral"}"#).unwrap_err();
        assert!(more.contains("at most 4 blocks"), "{more}");
        for (wrong, says) in [
            ("3", "must be an object"),
            ("{}", "cache_control.type is required"),
            (r#"{"type": "lasting"}"#, "ephemeral"),
            (r#"{"type": "ephemeral", "ttl": "2h"}"#, "5m or 1h"),
        ] {
            let error = take(&mut Marking::default(), wrong).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_salt_is_a_text_of_some_length() {
        let salt = |salt: &str| {
            let body = format!(r#"{{"cache_salt": {salt}}}"#);
            cache_salt(&mut Fields::parse(body.as_bytes()).unwrap())
                .map_err(|error| error.body().to_string())
        };
        assert_eq!(salt(r#""a""#), Ok(Some("a".into())));
        assert_eq!(salt("null"), Ok(None));
        let longest = format!("{:?}", "x".repeat(MAX_CACHE_SALT_BYTES));
        assert!(salt(&longest).is_ok());
        let longer = format!("{:?}", "x".repeat(MAX_CACHE_SALT_BYTES + 1));
        for wrong in [r#""""#, &longer, "3"] {
            assert!(salt(wrong).unwrap_err().contains("cache_salt"), "{wrong}");
        }
    }
}

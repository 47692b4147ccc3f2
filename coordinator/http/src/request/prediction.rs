//! `prediction` (OpenAI's), a text that the answer is expected to resemble, and `speculate`, which turns drafts off.
//!
//! An editor knows most of the file that it will get back. Its tokens are drafted and verified. Right ones come
//! sooner, and wrong ones change nothing.

use std::sync::Arc;

use brigade_dialect::text_model::TextModel;
use brigade_line::request::Limits;

use crate::error::ApiError;
use crate::request::bodies::text_error;
use crate::request::fields::{Fields, Given, Kind, list, read};

/// Most parts of the expected text.
const MAX_PARTS: usize = 256;

/// Reads both fields. Returns the expected text, which may be empty, or `None` where no drafts are wanted.
///
/// # Errors
/// A field of another form, or a text longer than the context holds.
pub fn drafts(
    fields: &mut Fields<'_>,
    limits: &Limits,
    text: &TextModel,
) -> Result<Option<Arc<[u32]>>, ApiError> {
    let speculate = fields.take("speculate")?.unwrap_or(true);
    let expected = match fields.raw("prediction") {
        Some(raw) => expected(raw)?,
        None => String::new(),
    };
    let of_prediction = [("prompt".to_owned(), "prediction".to_owned())];
    let checked = limits.check_text(expected.len());
    checked.map_err(|error| ApiError::from(error).renamed(&of_prediction))?;
    if !speculate {
        return Ok(None);
    }
    let tokens = if expected.is_empty() {
        Vec::new()
    } else {
        // It is what the model writes: names of control tokens in it are plain text.
        text.tokenizer().encode(&expected, false, false).map_err(text_error)?
    };
    Ok(Some(tokens.into()))
}

/// The text of `{"type": "content", "content": ..}`, which is a string or a list of texts.
fn expected(raw: Given<'_>) -> Result<String, ApiError> {
    let mut fields = Fields::nested("prediction", raw)?;
    let what: Option<String> = fields.take("type")?;
    if what.as_deref() != Some("content") {
        let message = "prediction.type: \"content\" is needed, the one that there is";
        return Err(ApiError::field("prediction.type", message));
    }
    let path = "prediction.content";
    let content = fields.raw("content");
    fields.end("prediction", &[]);
    let needed =
        "prediction.content: a string, or a list of {\"type\": \"text\", \"text\": ..} is needed";
    let content = content.ok_or_else(|| ApiError::field(path, needed))?;
    match content.kind() {
        Kind::Text => read(path, content),
        Kind::List => {
            let parts = list(path, content, MAX_PARTS)?;
            parts.into_iter().enumerate().map(|(i, part)| part_text(i, part)).collect()
        }
        _ => Err(ApiError::field(path, needed)),
    }
}

/// The text of part `i`.
fn part_text(i: usize, part: Given<'_>) -> Result<String, ApiError> {
    let path = format!("prediction.content[{i}]");
    let mut fields = Fields::nested(&path, part)?;
    let what: Option<String> = fields.take("type")?;
    if what.as_deref() != Some("text") {
        return Err(ApiError::field(&path, format!("{path}.type: \"text\" is needed")));
    }
    let text: Option<String> = fields.take("text")?;
    fields.end("prediction", &[]);
    text.ok_or_else(|| ApiError::field(&path, format!("{path}.text: a string is needed")))
}

//! `POST /tokenize` and `POST /detokenize`, as llama.cpp's server has them.

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde_json::{Value, json};

use super::error::ApiError;
use super::fields::Fields;
use super::{App, body};

/// `{"content": TEXT, "add_special"?: bool, "parse_special"?: bool}` to `{"tokens": [...]}`.
pub(super) async fn tokenize(
    State(app): State<App>,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let mut fields = Fields::parse(&body(bytes)?)?;
    let content: String = fields.require("content")?;
    let add = fields.take("add_special")?.unwrap_or(false);
    let parse = fields.take("parse_special")?.unwrap_or(true);
    let tokens = app.encode(move |text| text.tokenizer().encode(&content, add, parse)).await?;
    Ok(Json(json!({ "tokens": tokens })))
}

/// `{"tokens": [...]}` to `{"content": TEXT}`.
pub(super) async fn detokenize(
    State(app): State<App>,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<Value>, ApiError> {
    let mut fields = Fields::parse(&body(bytes)?)?;
    let tokens: Vec<u32> = fields.require("tokens")?;
    let content = app.encode(move |text| text.tokenizer().detokenize(&tokens, false)).await?;
    Ok(Json(json!({ "content": content })))
}

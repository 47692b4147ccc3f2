//! `POST /tokenize` and `POST /detokenize`, with the same JSON as llama.cpp's server; what vLLM's clients ask is
//! understood too (lm-eval's `local-completions` does).

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response};
use brigade_dialect::text_model::TextModel;
use serde::Serialize;
use serde_json::{Value, json};

use crate::answer::sent_body::Answer;
use crate::clients::shares::Part;
use crate::error::ApiError;
use crate::events::sse::json_text;
use crate::fleet::Meant;
use crate::request::bodies::text_error;
use crate::request::fields::Fields;
use crate::request::ignored_fields;
use crate::request::model_name::check_name;

/// Longest text to tokenise: its answer takes some seven bytes for each of it.
pub const MAX_TOKENIZE_BYTES: usize = 4 << 20;

/// Longest text to tokenise whose tokens' texts are wanted too: each takes a hundred bytes while it is written.
const MAX_PIECES_BYTES: usize = 1 << 18;

/// Most ids to turn into text: each may stand for hundreds of bytes.
pub const MAX_DETOKENIZE: usize = 1 << 18;

#[derive(Serialize)]
struct Tokens<T> {
    tokens: Vec<T>,
}

/// A token with its text.
#[derive(Serialize)]
struct Piece {
    id: u32,
    piece: Text,
}

/// A token's text, or its bytes where they are a part of a character alone.
#[derive(Serialize)]
#[serde(untagged)]
enum Text {
    Whole(String),
    Bytes(Vec<u8>),
}

impl Piece {
    fn of(text: &TextModel, id: u32) -> Self {
        let whole = String::from_utf8(text.vocab_bytes(id));
        Self { id, piece: whole.map_or_else(|part| Text::Bytes(part.into_bytes()), Text::Whole) }
    }
}

#[derive(Serialize)]
struct Content {
    content: String,
}

/// `{"content": TEXT, "add_special"?: bool, "parse_special"?: bool, "with_pieces"?: bool}`, or as vLLM has it `{"prompt":
/// TEXT, "add_special_tokens"?: bool}`, to `{"tokens": [...]}`: ids, or objects that have their texts too.
pub(crate) async fn tokenize(
    Meant(app): Meant,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let body = app.door.bodies.take(request).await?;
    let read = app.door.bodies.read_plain(body, app.text.clone(), tokens_of);
    let (json, room) = read.await?;
    Ok(answer(json, room))
}

/// The tokens of a request's text, as JSON.
fn tokens_of(bytes: &[u8], text: &TextModel) -> Result<String, ApiError> {
    let mut fields = Fields::parse(bytes)?;
    // Where special tokens are not spoken of, llama.cpp adds none and vLLM does.
    let prompt: Option<String> = fields.take("prompt")?;
    let add = fields.take_any(&["add_special", "add_special_tokens"])?;
    let add = add.unwrap_or(prompt.is_some());
    let content = match prompt {
        Some(_) if fields.raw("content").is_some() => {
            let message = "content and prompt exclude each other";
            return Err(ApiError::field("prompt", message));
        }
        Some(prompt) => prompt,
        None => fields.require::<String>("content")?,
    };
    if content.len() > MAX_TOKENIZE_BYTES {
        let message = format!("content has {} bytes: at most {MAX_TOKENIZE_BYTES}", content.len());
        return Err(ApiError::field("content", message));
    }
    let parse = fields.take("parse_special")?.unwrap_or(true);
    let with_pieces: bool = fields.take("with_pieces")?.unwrap_or(false);
    if with_pieces && content.len() > MAX_PIECES_BYTES {
        let n = content.len();
        let message = format!("content has {n} bytes: at most {MAX_PIECES_BYTES} with_pieces");
        return Err(ApiError::field("content", message));
    }
    end(fields, text)?;
    let tokens = text.tokenizer().encode(&content, add, parse).map_err(text_error)?;
    Ok(if with_pieces {
        let pieces = tokens.into_iter().map(|id| Piece::of(text, id)).collect();
        json_text(&Tokens::<Piece> { tokens: pieces })
    } else {
        json_text(&Tokens { tokens })
    })
}

/// Fields that would change what is tokenised.
const REFUSED: &[(&str, &str)] = &[
    (
        "messages",
        "/apply-template has the text of a chat, which is tokenised with add_special false",
    ),
    ("return_token_strs", "use with_pieces"),
];

/// The end of a request: the model's name, and what is left.
fn end(mut fields: Fields<'_>, text: &TextModel) -> Result<(), ApiError> {
    let model: Option<String> = fields.take("model")?;
    check_name(text, model.as_deref())?;
    for (name, why) in REFUSED {
        fields.refuse(name, why)?;
    }
    fields.end("/tokenize", &[ignored_fields::COMMON, ignored_fields::TOKENS]);
    Ok(())
}

/// Reads a body of `/tokenize`, and no more.
#[cfg(test)]
pub(crate) fn check(body: &[u8], text: &TextModel) -> Result<(), ApiError> {
    tokens_of(body, text).map(drop)
}

/// `GET /tokenizer_info`, as vLLM has it: tokens with a meaning, and the chat template.
pub(crate) async fn info(Meant(app): Meant) -> Json<Value> {
    let tokenizer = app.text.tokenizer();
    let token = |id: Option<u32>| id.and_then(|id| tokenizer.token_text(id));
    Json(json!({
        "tokenizer_class": "brigade", "bos_token": token(tokenizer.bos()), "eos_token": token(tokenizer.eos()),
        "pad_token": null, "chat_template": tokenizer.chat_template(None),
    }))
}

/// `{"tokens": [...]}` to `{"content": TEXT}`.
pub(crate) async fn detokenize(
    Meant(app): Meant,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let body = app.door.bodies.take(request).await?;
    let read = app.door.bodies.read_plain(body, app.text.clone(), |bytes, text| {
        let mut fields = Fields::parse(bytes)?;
        let tokens: Vec<u32> = fields.require("tokens")?;
        end(fields, text)?;
        if tokens.len() > MAX_DETOKENIZE {
            let message = format!("tokens has {} ids: at most {MAX_DETOKENIZE}", tokens.len());
            return Err(ApiError::field("tokens", message));
        }
        let content = text.tokenizer().detokenize(&tokens, false).map_err(text_error)?;
        Ok(json_text(&Content { content }))
    });
    let (json, room) = read.await?;
    Ok(answer(json, room))
}

/// An answer as large as its request keeps the room of that until it is sent.
fn answer(json: String, room: Option<Arc<Part>>) -> Response<Body> {
    let mut response = Response::new(Body::new(Answer::new(Body::from(json), room)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

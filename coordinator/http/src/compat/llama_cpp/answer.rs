//! llama.cpp's form of an answer: one text, whole or in pieces.

use axum::Json;
use axum::response::{IntoResponse, Response};
use brigade_line::generation::{End, EndReason, Part};
use brigade_proto::task;
use serde_json::{Value, json};
use tracing::Instrument;

use crate::answer::choices::{self, Choice};
use crate::answer::stamp::Stamp;
use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::events::sse;
use crate::request::fields::{Fields, list, read};
use crate::request::params::Common;

/// Most paths of `response_fields`.
const MAX_PICKED: usize = 256;

/// A prompt, how to draw, and what is wanted of the last object: all of it where nothing is named.
pub(crate) struct Asked {
    pub(crate) tokens: Vec<u32>,
    pub(crate) common: Common,
    pub(crate) picked: Vec<String>,
}

/// Reads `response_fields`: paths in the last object, such as `timings/prompt_n`.
pub(crate) fn picked(fields: &mut Fields<'_>) -> Result<Vec<String>, ApiError> {
    let Some(paths) = fields.raw("response_fields") else { return Ok(Vec::new()) };
    let paths = list("response_fields", paths, MAX_PICKED)?.into_iter().enumerate();
    paths.map(|(i, path)| read(&format!("response_fields[{i}]"), path)).collect()
}

/// What the paths lead to, each under its whole path, as llama.cpp has it; all where there are none.
fn pick(whole: Value, paths: &[String]) -> Value {
    if paths.is_empty() {
        return whole;
    }
    let found = |path: &String| {
        let value = path.split('/').try_fold(&whole, |at, key| at.get(key))?;
        Some((path.clone(), value.clone()))
    };
    Value::Object(paths.iter().filter_map(found).collect())
}

/// Refuses what this form has no place for; `why` says of several choices why there is one.
pub(crate) fn check_one(common: &Common, why: &str) -> Result<(), ApiError> {
    if common.n != 1 {
        return Err(ApiError::unsupported("n", format!("n is {}: {why}", common.n)));
    }
    if common.return_token_ids || common.resumable {
        let field = if common.resumable { "resumable" } else { "return_token_ids" };
        return Err(ApiError::unsupported(field, format!("{field} is for /v1/completions")));
    }
    Ok(())
}

/// Answers a prompt.
pub(crate) async fn give(app: &App, name: &Name, asked: Asked) -> Result<Response, ApiError> {
    let Asked { tokens, common, picked } = asked;
    let stamp = Stamp::new(app, "");
    let n_prompt = tokens.len();
    let mut running = choices::submit(app, name, &[tokens], &common, None, None).await?;
    if common.stream {
        let (events, response) = sse::channel();
        let sending = async move {
            // An error is a client that went away, which cancels the sequence.
            let _ = stream(stamp, n_prompt, running, &picked, &events).await;
        };
        task::spawn(sending.in_current_span());
        return Ok(response);
    }
    let Choice { text, end, .. } = choices::collect(running.remove(0)).await?;
    Ok(Json(pick(last(&stamp, n_prompt, &text, &end), &picked)).into_response())
}

fn last(stamp: &Stamp, n_prompt: usize, text: &str, end: &End) -> Value {
    let word = match (&end.stop, end.reason) {
        (Some(_), _) => "word",
        (None, EndReason::Stop) => "eos",
        (None, EndReason::Length) => "limit",
    };
    json!({
        "index": 0, "content": text, "tokens": [], "stop": true, "stop_type": word,
        "stopping_word": end.stop.as_deref().unwrap_or_default(), "model": stamp.model, "truncated": false,
        "tokens_predicted": end.n_generated, "tokens_evaluated": n_prompt,
        "tokens_cached": end.n_reused, "timings": choices::timings(n_prompt, end),
    })
}

async fn stream(
    stamp: Stamp,
    n_prompt: usize,
    running: Vec<choices::Running>,
    picked: &[String],
    out: &sse::Sender,
) -> Result<(), sse::Gone> {
    let mut parts = choices::Choices::of(running);
    while let Some((_, part)) = out.unless_gone(parts.next()).await? {
        match part {
            Ok(Part::Piece(piece)) => {
                out.json(
                    &json!({ "index": 0, "content": piece.text, "tokens": [], "stop": false }),
                )
                .await?;
            }
            Ok(Part::End(end)) => {
                return out.json(&pick(last(&stamp, n_prompt, "", &end), picked)).await;
            }
            Err(failure) => return out.json(&ApiError::from(failure).body()).await,
        }
    }
    Ok(())
}

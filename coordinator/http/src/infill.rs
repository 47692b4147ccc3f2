//! `POST /infill`: what stands between two texts, for editors, by a model that has the tokens for it.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use brigade_dialect::text_model::TextModel;
use brigade_line::generation::{End, EndReason, Part};
use brigade_line::request::Limits;
use brigade_proto::task;
use serde_json::{Value, json};
use tracing::Instrument;

use super::answer::{self, Choice};
use super::app::App;
use super::body::text_error;
use super::error::ApiError;
use super::fields::{Fields, MAX_TEMPLATE_VALUES, list};
use super::name::Name;
use super::params::Common;
use super::stamp::Stamp;
use super::{models, sse};

/// Tokens drawn when a client names no number.
const DEFAULT_INFILL_TOKENS: u32 = 128;

/// Most other files of one request.
const MAX_EXTRA: usize = 256;

/// The endpoint.
pub(super) async fn create(
    State(app): State<App>,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let (tokens, common) = app.read(request, read).await?;
    let stamp = Stamp::new(&app, "");
    let n_prompt = tokens.len();
    let mut running = answer::submit(&app, &name, &[tokens], &common, None, None).await?;
    if common.stream {
        let (events, response) = sse::channel();
        let sending = async move {
            // An error is a client that went away, which cancels the sequence.
            let _ = stream(stamp, n_prompt, running, &events).await;
        };
        task::spawn(sending.in_current_span());
        return Ok(response);
    }
    let Choice { text, end, .. } = answer::collect(running.remove(0)).await?;
    Ok(Json(last(&stamp, n_prompt, &text, &end)).into_response())
}

/// The prompt of a request, and how to draw.
fn read(body: &[u8], limits: &Limits, text: &TextModel) -> Result<(Vec<u32>, Common), ApiError> {
    let mut fields = Fields::parse(body)?;
    let model: Option<String> = fields.take("model")?;
    models::check_name(text, model.as_deref())?;
    let prefix: String = fields.take("input_prefix")?.unwrap_or_default();
    let suffix: String = fields.take("input_suffix")?.unwrap_or_default();
    let begun: String = fields.take("prompt")?.unwrap_or_default();
    let mut extra = String::new();
    if let Some(raw) = fields.raw("input_extra") {
        for (i, file) in list("input_extra", raw, MAX_EXTRA)?.into_iter().enumerate() {
            let mut file = Fields::nested(&format!("input_extra[{i}]"), file)?;
            extra.push_str(&file.require::<String>("text")?);
            extra.push('\n');
        }
    }
    limits.check_text(prefix.len() + suffix.len() + begun.len() + extra.len())?;
    let tokens = text.encode_fill_in(&format!("{extra}{prefix}"), &suffix, &begun);
    let tokens = tokens.map_err(text_error)?.ok_or_else(|| {
        let message =
            "this model has no tokens for filling in the middle (fim_pre, fim_suf, fim_mid)";
        ApiError::unsupported("input_suffix", message)
    })?;
    let mut left = MAX_TEMPLATE_VALUES;
    let mut common = Common::read(&mut fields, limits, text, DEFAULT_INFILL_TOKENS, &mut left)?;
    common.set_guide(|negative| text.encode_prompt(negative))?;
    Ok((tokens, common))
}

fn last(stamp: &Stamp, n_prompt: usize, text: &str, end: &End) -> Value {
    let word = match (&end.stop, end.reason) {
        (Some(_), _) => "word",
        (None, EndReason::Stop) => "eos",
        (None, EndReason::Length) => "limit",
    };
    json!({
        "content": text, "stop": true, "stop_type": word, "stopping_word": end.stop, "model": stamp.model,
        "tokens_predicted": end.n_generated, "tokens_evaluated": n_prompt,
        "tokens_cached": end.n_reused, "timings": answer::timings(n_prompt, end),
    })
}

async fn stream(
    stamp: Stamp,
    n_prompt: usize,
    running: Vec<answer::Running>,
    out: &sse::Sender,
) -> Result<(), sse::Gone> {
    let mut parts = answer::merge(running);
    while let Some((_, part)) = out.unless_gone(parts.recv()).await? {
        match part {
            Ok(Part::Piece(piece)) => {
                out.json(&json!({ "content": piece.text, "stop": false })).await?;
            }
            Ok(Part::End(end)) => return out.json(&last(&stamp, n_prompt, "", &end)).await,
            Err(failure) => return out.json(&ApiError::from(failure).body()).await,
        }
    }
    Ok(())
}

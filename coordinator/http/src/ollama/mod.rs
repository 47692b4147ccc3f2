//! Ollama's own API, for editors that look for it: `/api/tags`, `show`, `ps`, `version`, `chat`, `generate`,
//! `embed`. Answers are lines of JSON, one a piece.

mod answer;
pub(super) mod request;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use brigade_line::clock;
use serde_json::{Value, json};

use super::app::App;
use super::chat_request::{self, Begun};
use super::embeddings;
use super::error::ApiError;
use super::name::Name;
use super::stamp::Stamp;
pub(super) use answer::Shape;

/// The version of Ollama whose API this is: programs ask for a least one.
const API_VERSION: &str = "0.12.6";

/// An error in Ollama's shape: a word about it, and nothing else.
#[derive(Debug)]
pub(super) struct Refusal(ApiError);

impl From<ApiError> for Refusal {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl Refusal {
    fn body(&self) -> Value {
        json!({ "error": self.0.body()["error"]["message"] })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0.status(), Json(self.body())).into_response()
    }
}

/// `GET /api/version`.
pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": API_VERSION }))
}

/// `GET /api/tags`: the names under which the model is served.
pub(super) async fn tags(State(app): State<App>) -> Json<Value> {
    let models: Vec<Value> = app.text.names().iter().map(|name| entry(&app, name)).collect();
    Json(json!({ "models": models }))
}

/// `GET /api/ps`: the same, since it is loaded.
pub(super) async fn running(State(app): State<App>) -> Json<Value> {
    let loaded = |name: &String| {
        let mut entry = entry(&app, name);
        entry["expires_at"] = json!("9999-12-31T23:59:59Z");
        entry["size_vram"] = json!(0);
        entry["context_length"] = json!(app.limits.n_ctx);
        entry
    };
    let models: Vec<Value> = app.text.names().iter().map(loaded).collect();
    Json(json!({ "models": models }))
}

fn entry(app: &App, name: &str) -> Value {
    json!({
        "name": name, "model": name, "modified_at": clock::date_time(app.created), "size": app.meta.size,
        "digest": "", "details": details(app),
    })
}

fn details(app: &App) -> Value {
    let arch = &app.meta.architecture;
    json!({
        "parent_model": "", "format": "gguf", "family": arch, "families": [arch],
        "parameter_size": format!("{:.1}B", app.meta.n_params as f64 / 1e9), "quantization_level": "",
    })
}

/// `POST /api/show`: what the model can do.
pub(super) async fn show(State(app): State<App>, request: Request) -> Result<Json<Value>, Refusal> {
    let body = app.bodies.take(request).await?;
    let read = app.bodies.read(body, app.text.clone(), |bytes, text| {
        let mut fields = super::fields::Fields::parse(bytes)?;
        let name: Option<String> = fields.take_any(&["model", "name"])?;
        super::models::check_name(text, name.as_deref())
    });
    read.await?;
    let arch = &app.meta.architecture;
    let mut capabilities = vec!["completion"];
    if let Some((dialect, facts)) = app.text.dialect() {
        if facts.declares_tools && dialect.calls.is_some() || dialect.channels {
            capabilities.push("tools");
        }
        if dialect.reasoning.is_some() || dialect.channels {
            capabilities.push("thinking");
        }
    }
    if app.text.fill_in().is_some() {
        capabilities.push("insert");
    }
    let info = json!({
        "general.architecture": arch, "general.parameter_count": app.meta.n_params,
        format!("{arch}.context_length"): app.limits.n_ctx,
    });
    Ok(Json(json!({
        "modelfile": "", "parameters": "", "template": "", "details": details(&app),
        "model_info": info, "capabilities": capabilities,
        "modified_at": clock::date_time(app.created),
    })))
}

/// `POST /api/chat`.
pub(super) async fn chat(
    State(app): State<App>,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, Refusal> {
    let begun = chat_request::begin(&app, request, |bytes| Ok((request::chat(bytes)?, ()))).await?;
    let Begun { request, prompt, more: (), .. } = begun;
    let stamp = Stamp::new(&app, "");
    let n_prompt = prompt.tokens.len();
    let replies = request.submit(&app, &name, &prompt, None).await?;
    let stream = request.common.stream;
    Ok(answer::answer(stamp, Shape::Chat, n_prompt, replies, stream).await?)
}

/// `POST /api/generate`: one turn of a chat.
pub(super) async fn generate(
    State(app): State<App>,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, Refusal> {
    let begun = chat_request::begin(&app, request, |bytes| {
        let (body, is_empty) = request::generate(bytes)?;
        Ok((body, is_empty))
    });
    let Begun { request, prompt, more: is_empty, .. } = begun.await?;
    let stamp = Stamp::new(&app, "");
    if is_empty {
        // Asks for the model to be loaded: it is.
        let done = json!({
            "model": stamp.model, "created_at": clock::date_time(clock::unix_now()), "response": "",
            "done": true, "done_reason": "load",
        });
        return Ok(Json(done).into_response());
    }
    let n_prompt = prompt.tokens.len();
    let replies = request.submit(&app, &name, &prompt, None).await?;
    let stream = request.common.stream;
    Ok(answer::answer(stamp, Shape::Generate, n_prompt, replies, stream).await?)
}

/// `POST /api/embed`.
pub(super) async fn embed(
    State(app): State<App>,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Json<Value>, Refusal> {
    let made = embeddings::make(&app, &name, request).await?;
    Ok(Json(json!({
        "model": app.text.name(), "embeddings": made.vectors, "total_duration": 0, "load_duration": 0,
        "prompt_eval_count": made.n_tokens,
    })))
}

/// For addresses that would change what is served.
pub(super) async fn fixed() -> Response {
    let body = json!({ "error": "the model is fixed when brigade starts: this server pulls and deletes nothing" });
    (StatusCode::NOT_IMPLEMENTED, Json(body)).into_response()
}

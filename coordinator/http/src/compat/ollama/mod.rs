//! Ollama's own API, for editors that look for it: `/api/tags`, `show`, `ps`, `version`, `chat`, `generate`,
//! `embed` and the older `embeddings`. Answers are lines of JSON, one a piece.

mod answer;
pub(crate) mod request;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use brigade_dialect::text_model::{Prompt, TextModel};
use brigade_line::clock;
use brigade_line::request::Limits;
use serde_json::{Value, json};

use crate::answer::chat_answer::ChatAnswer;
use crate::answer::choices::submit;
use crate::answer::stamp::Stamp;
use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::fleet::{Fleet, Meant, Member, Presence};
use crate::openai::completions;
use crate::openai::embeddings;
use crate::request::chat_request::ChatRequest;
use crate::request::fields::Fields;
use crate::request::model_name::check_name;
use crate::request::params::Common;
pub(crate) use answer::Shape;
use request::{Asked, Load};

/// The version of Ollama whose API this is: programs ask for a least one.
const API_VERSION: &str = "0.12.6";

/// The prefix of this API's addresses.
pub(crate) const ROOT: &str = "/api";

/// An error in Ollama's form: a word about it, and nothing else.
pub(crate) fn error_body(error: &ApiError) -> Value {
    json!({ "error": error.body()["error"]["message"] })
}

/// Handles `GET /api/version`.
pub(crate) async fn version() -> Json<Value> {
    Json(json!({ "version": API_VERSION }))
}

/// `GET /api/tags`: the names under which the model is served.
pub(crate) async fn tags(
    State(fleet): State<Fleet>,
    Extension(asks): Extension<Name>,
) -> Json<Value> {
    fleet.refresh().await;
    listed(&fleet, &asks, |_| true, entry)
}

/// A list with one `entry` for each name of each model that the client may use.
fn listed(
    fleet: &Fleet,
    asks: &Name,
    is_wanted: impl Fn(&Member) -> bool,
    entry: impl Fn(&App, &str) -> Value,
) -> Json<Value> {
    let of = |member: &Member| {
        let app = member.now();
        app.names().map(|name| entry(&app, name)).collect::<Vec<_>>()
    };
    let all = fleet.usable(asks);
    let all = all.iter().filter(|member| is_wanted(member));
    Json(json!({ "models": all.flat_map(of).collect::<Vec<_>>() }))
}

/// `GET /api/ps`: those that are loaded.
pub(crate) async fn running(
    State(fleet): State<Fleet>,
    Extension(asks): Extension<Name>,
) -> Json<Value> {
    let is_loaded = |member: &Member| member.presence().is_none_or(|now| now == Presence::Loaded);
    listed(&fleet, &asks, is_loaded, |app, name| {
        let mut entry = entry(app, name);
        entry["expires_at"] = json!("9999-12-31T23:59:59Z");
        entry["size_vram"] = json!(0);
        entry["context_length"] = json!(app.limits.now().n_ctx);
        entry
    })
}

fn entry(app: &App, name: &str) -> Value {
    json!({
        "name": name, "model": name, "modified_at": clock::date_time(app.created), "size": app.meta.size,
        "digest": "", "details": details(app), "capabilities": capabilities(app),
    })
}

fn details(app: &App) -> Value {
    let arch = &app.meta.architecture;
    json!({
        "parent_model": "", "format": "gguf", "family": arch, "families": [arch],
        "parameter_size": format!("{:.1}B", app.meta.n_params as f64 / 1e9),
        "quantization_level": app.meta.quantization,
    })
}

/// The model's capabilities, in Ollama's words.
fn capabilities(app: &App) -> Vec<&'static str> {
    if app.limits.now().encoder.is_some() {
        return vec!["embedding"];
    }
    let mut all = vec!["completion"];
    if let Some((dialect, facts)) = app.text.dialect() {
        if facts.declares_tools && dialect.calls.is_some() || dialect.channels {
            all.push("tools");
        }
        if dialect.reasoning.is_some() || dialect.channels {
            all.push("thinking");
        }
    }
    if app.text.fill_in().is_some() {
        all.push("insert");
    }
    all
}

/// `POST /api/show`: what the model can do.
pub(crate) async fn show(Meant(app): Meant, request: Request) -> Result<Json<Value>, ApiError> {
    let body = app.door.bodies.take(request).await?;
    let read = app.door.bodies.read(body, app.text.clone(), |bytes, text| {
        let mut fields = Fields::parse(bytes)?;
        let name: Option<String> = fields.take_any(&["model", "name"])?;
        fields.end(
            "/api/show",
            &[crate::request::ignored_fields::COMMON, crate::request::ignored_fields::OLLAMA_SHOW],
        );
        crate::request::model_name::check_name(text, name.as_deref())
    });
    read.await?;
    let arch = &app.meta.architecture;
    let info = json!({
        "general.architecture": arch, "general.parameter_count": app.meta.n_params,
        format!("{arch}.context_length"): app.limits.now().n_ctx,
    });
    Ok(Json(json!({
        "modelfile": "", "parameters": "",
        "template": app.text.tokenizer().chat_template(None).unwrap_or_default(),
        "details": details(&app), "model_info": info, "capabilities": capabilities(&app),
        "modified_at": clock::date_time(app.created),
    })))
}

/// Handles `POST /api/chat`.
pub(crate) async fn chat(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let read = read(&app, request, request::chat).await?;
    run(&app, &name, read, Shape::Chat).await
}

/// A parsed request: a chat, or an order to load or unload a model.
pub(crate) enum Read {
    Chat(Box<ChatRequest>, Prompt),
    /// A prompt as it is.
    Raw(Vec<u32>, Box<Common>),
    ToLoad(Load),
}

/// Reads a body that `translate` makes a request of.
async fn read(
    app: &App,
    request: Request,
    translate: impl FnOnce(&[u8]) -> Result<Asked, ApiError> + Send + 'static,
) -> Result<Read, ApiError> {
    let read = move |bytes: &[u8], limits: &Limits, text: &TextModel| {
        read_asked(translate(bytes), limits, text)
    };
    app.read(request, read).await
}

/// Reads what a body was translated into.
pub(crate) fn read_asked(
    asked: Result<Asked, ApiError>,
    limits: &Limits,
    text: &TextModel,
) -> Result<Read, ApiError> {
    match asked? {
        Asked::Chat(chat, names) => {
            let (request, prompt) =
                ChatRequest::translated(Fields::made(&chat), names, limits, text)?;
            Ok(Read::Chat(Box::new(request), prompt))
        }
        Asked::Completion(body, names) => {
            let read = || completions::plain(Fields::made(&body)?, limits, text);
            let (tokens, common) = read().map_err(|error| error.renamed(&names))?;
            Ok(Read::Raw(tokens, Box::new(common)))
        }
        Asked::ToLoad(load) => {
            check_name(text, load.model.as_deref())?;
            Ok(Read::ToLoad(load))
        }
    }
}

/// Runs it, and answers in the address's shape.
async fn run(app: &App, name: &Name, read: Read, shape: Shape) -> Result<Response, ApiError> {
    let stamp = Stamp::new(app, "");
    let (n_prompt, replies, stream) = match read {
        Read::Chat(request, prompt) => {
            let replies = request.submit(app, name, &prompt, None).await?;
            (prompt.tokens.len(), replies, request.common.stream)
        }
        Read::Raw(tokens, common) => {
            let n_prompt = tokens.len();
            let running = submit(app, name, &[tokens], &common, None, None).await?;
            let plain = |running| ChatAnswer::new(running, app.text.plain_parser(), "");
            (n_prompt, running.into_iter().map(plain).collect(), common.stream)
        }
        Read::ToLoad(load) => return Ok(Json(answer::loaded(&stamp, shape, &load)).into_response()),
    };
    answer::answer(stamp, shape, n_prompt, replies, stream).await
}

/// `POST /api/generate`: one turn of a chat, or with `raw` the continuation of a prompt as it is.
pub(crate) async fn generate(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Response, ApiError> {
    let read = read(&app, request, request::generate).await?;
    run(&app, &name, read, Shape::Generate).await
}

/// Handles `POST /api/embed`.
pub(crate) async fn embed(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let made = embeddings::make(&app, &name, request).await?;
    Ok(Json(json!({
        "model": app.text.name(), "embeddings": made.vectors, "total_duration": 0, "load_duration": 0,
        "prompt_eval_count": made.n_tokens,
    })))
}

/// `POST /api/embeddings`, the address before that: one text, one vector.
pub(crate) async fn embeddings(
    Meant(app): Meant,
    Extension(name): Extension<Name>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let mut made = embeddings::make(&app, &name, request).await?;
    match made.vectors.len() {
        1 => Ok(Json(json!({ "embedding": made.vectors.remove(0) }))),
        n => {
            let message = format!("prompt has {n} texts: /api/embed takes several");
            Err(ApiError::field("prompt", message))
        }
    }
}

/// Translates a body of `/api/chat`, and no more.
#[cfg(test)]
pub(crate) fn check_chat(body: &[u8]) -> Result<(), ApiError> {
    request::chat(body).map(drop)
}

/// Translates a body of `/api/generate`, and no more.
#[cfg(test)]
pub(crate) fn check_generate(body: &[u8]) -> Result<(), ApiError> {
    request::generate(body).map(drop)
}

/// Refuses addresses that would change which models are served.
pub(crate) async fn fixed() -> Response {
    let body = json!({ "error": "models are not pulled, created or deleted at this address: use `brigade pull`, or name the model in a request where serve has --allow-pull" });
    (StatusCode::NOT_IMPLEMENTED, Json(body)).into_response()
}

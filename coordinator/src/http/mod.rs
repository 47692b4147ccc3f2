//! The HTTP server: OpenAI's JSON outside, [`Engine`] inside.
//!
//! The only place that knows that JSON. Requests are read leniently and answered strictly; what
//! cannot be done is refused by name; what clients may take of time, connections and memory is bounded (`serve`,
//! `body`, `fields`). Knows nothing of workers or schedules, and tells nothing of them.

mod answer;
mod body;
mod chat;
mod completions;
mod error;
mod events;
mod fields;
mod logprobs;
mod messages;
mod models;
mod params;
mod recover;
mod reply;
mod serve;
mod sse;
mod status;
mod stream;
mod streams;
mod tally;
mod tokens;
mod tools;
mod trace;
mod types;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware;
use axum::routing::{get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio_util::sync::CancellationToken;

pub use body::{Bodies, BodyTimes, MAX_BODIES_BYTES, MAX_BODY_BYTES};
pub use error::ApiError;
pub use recover::go_on;
pub use serve::{ConnectionLimits, HEAD_WITHIN, MAX_CONNECTIONS, serve};
pub use streams::Streams;
pub use types::ModelMeta;

use crate::clock;
use crate::handle::Engine;
use crate::health::RollWatch;
use crate::request::Limits;
use crate::text_model::TextModel;

/// Everything a handler needs; clones share it.
#[derive(Clone, Debug)]
pub struct App {
    /// Runs sequences.
    pub engine: Engine,
    /// Text to tokens and back.
    pub text: Arc<TextModel>,
    /// What requests must fit in.
    pub limits: Limits,
    /// For `/v1/models`.
    pub meta: Arc<ModelMeta>,
    /// Seconds since the Unix epoch when the model was opened.
    pub created: u64,
    /// Renders `/metrics`.
    pub metrics: PrometheusHandle,
    /// Cancelled when the server takes nothing new.
    pub draining: CancellationToken,
    /// Counts sequences.
    pub sequences: Arc<AtomicU64>,
    /// Room for request bodies, and permits to read them.
    pub bodies: Bodies,
    /// Whether `/health` says what is being done and what went wrong, with names.
    pub health_details: bool,
    /// Who is there.
    pub roll: RollWatch,
    /// Streams that can be read on.
    pub streams: Streams,
}

/// All addresses of the server.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{id}", get(models::one))
        .route("/v1/streams/{id}", get(streams::read_on).delete(streams::cancel))
        .route("/health", get(status::health))
        .route("/metrics", get(status::metrics))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .fallback(no_such_address)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(app.clone(), trace::request))
        .with_state(app)
}

/// What there is, for whoever asks for something else.
const ADDRESSES: &str = "POST /v1/chat/completions, /v1/completions, /tokenize and /detokenize, and GET /v1/models, \
     /v1/streams/ID, /health and /metrics";

async fn no_such_address(request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::not_found(format!("{path} does not exist here; what does: {ADDRESSES}"))
}

async fn no_such_method(method: Method, request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::method_not_allowed(format!(
        "{path} does not take {method}; what there is: {ADDRESSES}"
    ))
}

/// What all objects of one answer carry.
#[derive(Clone, Debug)]
struct Stamp {
    id: String,
    created: u64,
    model: String,
    fingerprint: String,
}

impl Stamp {
    fn new(app: &App, prefix: &str) -> Self {
        Self {
            id: format!("{prefix}{}", crate::random::id()),
            created: clock::unix_now(),
            model: app.text.name().to_string(),
            fingerprint: concat!("brigade-", env!("CARGO_PKG_VERSION")).to_string(),
        }
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tool_tests;

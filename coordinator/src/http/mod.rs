//! The HTTP server: OpenAI's JSON outside, [`Engine`] inside.
//!
//! The only place that knows that JSON. Requests are read leniently and answered strictly; what
//! cannot be done is refused by name; a client that is slow to say what it wants is given up
//! ([`HEAD_WITHIN`]). Knows nothing of workers or schedules.

mod answer;
mod chat;
mod completions;
mod error;
mod fields;
mod logprobs;
mod models;
mod params;
mod serve;
mod sse;
mod status;
mod tokens;
mod trace;
mod types;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Method, StatusCode};
use axum::middleware;
use axum::routing::{get, post};
use brigade_engine::text::TextError;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use error::ApiError;
pub use serve::{HEAD_WITHIN, serve};
pub use types::ModelMeta;

use crate::clock;
use crate::handle::Engine;
use crate::request::Limits;
use crate::text_model::TextModel;

/// Largest request body: a prompt of a million tokens and room to spare.
pub const MAX_BODY_BYTES: usize = 16 << 20;

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
    /// Permits for work on texts; see [`App::encode`].
    pub encoders: Arc<Semaphore>,
}

/// Texts that are templated or tokenised at once.
pub const MAX_ENCODERS: usize = 8;

impl App {
    /// Runs templating or tokenising beside the event loop: a long text or a costly template takes
    /// seconds, and the driver and its heartbeats must not wait for that.
    async fn encode<T: Send + 'static>(
        &self,
        work: impl FnOnce(&TextModel) -> Result<T, TextError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let closed = |_| ApiError::server("the server is ending");
        let permit = self.encoders.clone().acquire_owned().await.map_err(closed)?;
        let text = self.text.clone();
        let task = tokio::task::spawn_blocking(move || {
            let result = work(&text);
            drop(permit);
            result
        });
        match task.await {
            Ok(result) => Ok(result?),
            Err(error) => Err(ApiError::server(format!("reading the text failed: {error}"))),
        }
    }
}

/// All addresses of the server.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{id}", get(models::one))
        .route("/health", get(status::health))
        .route("/metrics", get(status::metrics))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .fallback(no_such_address)
        .method_not_allowed_fallback(no_such_method)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn_with_state(app.clone(), trace::request))
        .with_state(app)
}

async fn no_such_address(request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::not_found(format!("{path} does not exist here: the API starts at /v1"))
}

async fn no_such_method(method: Method, request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::method_not_allowed(format!("{path} does not take {method}"))
}

/// The request's body, or the reason why there is none.
fn body(bytes: Result<Bytes, BytesRejection>) -> Result<Bytes, ApiError> {
    bytes.map_err(|rejection| {
        if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
            ApiError::too_large(MAX_BODY_BYTES)
        } else {
            ApiError::bad_request(format!("the request body cannot be read: {rejection}"))
        }
    })
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

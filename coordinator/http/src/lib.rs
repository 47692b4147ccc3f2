//! The HTTP server: OpenAI's JSON outside, [`Engine`](brigade_line::handle::Engine) inside. No other crate knows that
//! JSON.
//!
//! There are two listeners: clients' ([`router`]), where a request may need a key (`access`), and the operator's
//! ([`admin_router`]). Requests are read leniently and answered strictly. What cannot be done is refused by name.
//! What clients may take of time, connections and memory is bounded (`serve`, `connections`, `bodies`, `fields`). The server
//! knows nothing of workers or schedules, and tells clients nothing of them.
//!
//! Reading order:
//!
//! - This file has the addresses. [`App`] is what every handler has of its model, [`Fleet`] which models there are, `name` what a request is known by.
//! - `serve`, `connections`, `socket`, `https` and `strict` take connections. `trace` wraps every request, `hosts` and `content_encoding` refuse
//!   what is not for this server, `refusals` in the form of the API that was asked. `guard` asks `access` for its owner,
//!   `usage` counts it, and `audit` writes it down. `bodies` reads it, `fields`, `value`, `params` and `caching` what is in it; `unread`
//!   lists what is left. `while_loading` begins answers whose model is not there yet.
//! - `chat` and `chat_request`, `completions` and `infill` are OpenAI's and llama.cpp's ways to ask for text. `choices`
//!   runs their sequences, `chat_answer` and `blocks` read what comes, `sse`, `writer` and `sent_body` send it.
//! - `anthropic`, `responses` and `ollama` say the same in other words. `embeddings`, `rerank` and `pooled` are about
//!   vectors.
//! - `resumable` and `reconnect` are for clients that come back, `handover` and `recover` for a coordinator that does.
//! - `models`, `props`, `status` and `tokens` tell what there is; `page` shows it.

mod access;
mod admin;
mod answer_format;
mod anthropic;
mod app;
mod audit;
mod blocks;
mod bodies;
mod caching;
mod chat;
mod chat_answer;
mod chat_request;
mod choices;
mod completions;
mod connections;
mod content_encoding;
mod cors;
mod embeddings;
mod error;
mod fields;
mod fleet;
mod guard;
mod handover;
mod hosts;
mod https;
mod infill;
mod keep_alive;
mod logit_bias;
mod logprobs;
mod messages;
mod model_name;
mod models;
mod name;
mod ollama;
mod page;
mod params;
mod pooled;
mod position;
mod prediction;
mod prompt_logprobs;
mod props;
mod reconnect;
mod recover;
mod refusals;
mod rerank;
mod responses;
mod resumable;
mod sent_body;
mod serve;
mod shares;
mod socket;
mod sse;
mod stamp;
mod status;
mod strict;
mod tokens;
mod tools;
mod trace;
mod types;
mod under_way;
mod unread;
mod usage;
mod value;
mod while_loading;
mod writer;

use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware;
use axum::routing::{delete, get, post};
use brigade_line::request::Limits;

pub use access::Access;
pub use admin::admin_router;
pub use app::{App, Door};
pub use audit::{Audit, AuditOptions, DEFAULT_AUDIT_BYTES};
pub use bodies::{Bodies, BodyTimes, MAX_BODIES_BYTES, MAX_BODY_BYTES};
pub use cors::Origins;
pub use error::ApiError;
pub use fleet::{Coming, Fleet, FleetError, Loader, Looking, Member, NotLoaded, Source, Wish};
pub use hosts::{Hosts, allowed_host};
pub use https::{Renewer, Tls, TlsError, TlsFiles};
pub use recover::go_on;
pub use resumable::Streams;
pub use serve::{ConnectionLimits, HEAD_WITHIN, MAX_CONNECTIONS, serve};
pub use under_way::UnderWay;
pub use while_loading::MODEL_WITHIN;

/// All addresses of the public listener, which is asked by the names `hosts`, also by web pages of `origins`.
pub fn router(fleet: Fleet, hosts: Hosts, origins: Origins) -> Router {
    Router::new()
        .route(chat::PATH, post(chat::create))
        .route(completions::PATH, post(completions::create))
        .route("/v1/messages", post(anthropic::create))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/v1/responses", post(responses::create))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{id}", get(models::one))
        .merge(beside())
        .route("/v1/streams/{id}", get(reconnect::read_on).delete(reconnect::cancel))
        .route("/health", get(status::health))
        .route("/tokenize", post(tokens::tokenize))
        .route("/detokenize", post(tokens::detokenize))
        .route("/tokenizer_info", get(tokens::info))
        .fallback(no_such_address)
        .method_not_allowed_fallback(no_such_method)
        .layer(middleware::from_fn_with_state(fleet.clone(), guard::guard))
        .merge(page())
        .layer(middleware::from_fn(content_encoding::layer))
        .layer(middleware::from_fn_with_state(hosts, hosts::layer))
        .layer(middleware::from_fn_with_state(fleet.clone(), trace::request))
        .layer(middleware::from_fn_with_state(origins, cors::layer))
        .layer(middleware::from_fn(refusals::layer))
        .with_state(fleet)
}

/// The page's files: they say nothing of anybody, and need no key. What the page asks for does.
fn page() -> Router<Fleet> {
    Router::new()
        .route("/", get(page::index))
        .route("/page.css", get(page::style))
        .route("/page.js", get(page::script))
        .route("/chats.js", get(page::chats))
        .route("/markdown.js", get(page::markdown))
}

/// Addresses that other servers have, llama.cpp's and Ollama's, and what the page shows of the line.
fn beside() -> Router<Fleet> {
    Router::new()
        .route("/line", get(props::line))
        .route("/v1/rerank", post(rerank::create))
        .route("/rerank", post(rerank::create))
        .route("/v1/reranking", post(rerank::create))
        .route("/reranking", post(rerank::create))
        .route("/infill", post(infill::create))
        .route("/apply-template", post(props::apply_template))
        .route("/props", get(props::props))
        .route("/lora-adapters", get(props::adapters))
        .route("/slots", get(props::slots))
        .route("/version", get(props::version))
        .route("/api/version", get(ollama::version))
        .route("/api/tags", get(ollama::tags))
        .route("/api/ps", get(ollama::running))
        .route("/api/show", post(ollama::show))
        .route("/api/chat", post(ollama::chat))
        .route("/api/generate", post(ollama::generate))
        .route("/api/embed", post(ollama::embed))
        .route("/api/embeddings", post(ollama::embeddings))
        .route("/api/pull", post(ollama::fixed))
        .route("/api/create", post(ollama::fixed))
        .route("/api/delete", delete(ollama::fixed))
}

/// What there is, for whoever asks for something else.
const ADDRESSES: &str = "POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, \
     /v1/embeddings, /v1/rerank, /infill, /apply-template, /api/chat, /api/generate, /api/embed, /api/embeddings, /api/show, /tokenize and \
     /detokenize, and GET /, /v1/models, /v1/streams/ID, /props, /lora-adapters, /slots, /line, /version, /tokenizer_info, /api/tags, /api/ps, \
     /api/version and /health";

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

/// An address whose bodies are read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`
    Chat,
    /// `/v1/completions`
    Completion,
}

/// Reads a body as its endpoint does, and no more: for fuzzing.
///
/// # Errors
/// What the client would be told.
pub fn check_body(endpoint: Endpoint, body: &[u8], limits: &Limits) -> Result<(), ApiError> {
    match endpoint {
        Endpoint::Chat => chat::check(body, limits),
        Endpoint::Completion => completions::check(body, limits),
    }
}

#[cfg(test)]
mod fields_tests;
#[cfg(test)]
mod fleet_tests;
#[cfg(test)]
mod kinds_tests;
#[cfg(test)]
mod leaf_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tool_tests;
#[cfg(test)]
mod walk_tests;
#[cfg(test)]
mod while_loading_tests;

//! The router of the public listener: its addresses, and the layers around them.

use axum::Router;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware;
use axum::routing::{delete, get, post};

use crate::compat::llama_cpp::{completion, infill, props, tokens};
use crate::compat::{anthropic, ollama, responses};
use crate::error::ApiError;
use crate::fleet::Fleet;
use crate::openai::{chat, completions, embeddings, models, reconnect, rerank};
use crate::server::cors::Origins;
use crate::server::hosts::Hosts;
use crate::server::{content_encoding, cors, guard, hosts, page, refusals, status, trace};

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
        .route("/v1/models/{*id}", get(models::one))
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

/// The page's files. They have no private content and need no key; the requests that the page makes do.
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
        .route("/completion", post(completion::create))
        .route("/completions", post(completion::create))
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

/// The listener's addresses, for the error about an unknown one.
const ADDRESSES: &str = "POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, \
     /v1/embeddings, /v1/rerank, /completion (/completions), /infill, /apply-template, /api/chat, /api/generate, /api/embed, /api/embeddings, /api/show, /tokenize and \
     /detokenize, and GET /, /v1/models, /v1/streams/ID, /props, /lora-adapters, /slots, /line, /version, /tokenizer_info, /api/tags, /api/ps, \
     /api/version and /health";

async fn no_such_address(request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::not_found(format!("{path} does not exist here; these do: {ADDRESSES}"))
}

async fn no_such_method(method: Method, request: Request) -> ApiError {
    let path = request.uri().path();
    ApiError::method_not_allowed(format!("{path} does not take {method}; these exist: {ADDRESSES}"))
}

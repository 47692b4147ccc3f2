//! Gives every request an id, and opens its log span.
//!
//! The id is the client's own `x-request-id` if that is sensible. It is in the response's headers and in
//! every log line about the request, those of the workers included. The request's own line is written by
//! [`tally`](super::tally).

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use brigade_proto::limits::MAX_REQUEST_ID_BYTES;
use tracing::Instrument;

use super::App;
use super::error::ApiError;
use super::tally::{Line, Tally};
use crate::metrics;

const HEADER: &str = "x-request-id";

/// A request's id, for the handlers, and what they count of it for its line.
#[derive(Clone, Debug)]
pub(super) struct Name {
    pub(super) id: Arc<str>,
    pub(super) tally: Arc<Tally>,
}

/// Wraps every handler.
pub(super) async fn request(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let id = id_of(request.headers());
    let name = Name { id: id.as_str().into(), tally: Arc::default() };
    request.extensions_mut().insert(name.clone());
    let span = tracing::info_span!("request", id);
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    async move {
        let started = Instant::now();
        let mut response = if app.draining.is_cancelled() && method == Method::POST {
            ApiError::unavailable("the server is shutting down; try again elsewhere or later")
                .into_response()
        } else {
            next.run(request).await
        };
        let status = response.status().as_u16();
        metrics::http_response(status);
        if method == Method::POST {
            let (Name { id, tally }, model) = (name, app.text.name().to_string());
            // Whoever sends the answer keeps this as long as the answer.
            let line = Line { id, method, path, model, status, started, tally };
            response.extensions_mut().insert(Arc::new(line));
        } else {
            let ms = started.elapsed().as_millis() as u64;
            tracing::debug!(%method, path, status, ms, "answered");
        }
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(HEADER, value);
        }
        response
    }
    .instrument(span)
    .await
}

fn id_of(headers: &HeaderMap) -> String {
    headers
        .get(HEADER)
        .and_then(|value| value.to_str().ok())
        .filter(|id| !id.is_empty() && id.len() <= MAX_REQUEST_ID_BYTES)
        .map_or_else(|| format!("req-{}", crate::random::id()), str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sensible_id_is_kept() {
        let with =
            |id: &str| HeaderMap::from_iter([(HEADER.parse().unwrap(), id.parse().unwrap())]);
        assert_eq!(id_of(&with("abc")), "abc");
        assert!(id_of(&with(&"x".repeat(MAX_REQUEST_ID_BYTES + 1))).starts_with("req-"));
        assert!(id_of(&HeaderMap::new()).starts_with("req-"));
    }
}

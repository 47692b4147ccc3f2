//! Gives every request an id, and opens its log span.
//!
//! The id is the client's own `x-request-id` if that is sensible. It is in the response's headers and in
//! every log line about the request, those of the workers included. The request's own line is written by
//! [`usage`](crate::clients::usage).

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use brigade_line::measured::metrics;
use brigade_proto::limits::MAX_REQUEST_ID_BYTES;
use tracing::Instrument;

use crate::clients::access::HEALTH;
use crate::clients::audit::Audit;
use crate::clients::name::Name;
use crate::clients::usage::{Line, RequestUsage};
use crate::error::ApiError;
use crate::fleet::Fleet;

const HEADER: &str = "x-request-id";

/// Characters of a path in logs; ours are shorter.
const MAX_LOGGED_PATH: usize = 200;

/// The layer's middleware, around every handler.
pub(crate) async fn request(
    State(fleet): State<Fleet>,
    mut request: Request,
    next: Next,
) -> Response {
    let started = Instant::now();
    let door = fleet.door();
    let id = id_of(request.headers());
    let (method, path) = (request.method().clone(), path_of(&request));
    let audit = door.audit.clone().filter(|_| path != HEALTH);
    let usage = Arc::new(RequestUsage::new(audit.as_ref().is_some_and(Audit::has_content)));
    if let Some(model) = fleet.only_name() {
        usage.is_for(&model);
    }
    let name = Name { id: id.as_str().into(), usage };
    request.extensions_mut().insert(name.clone());
    let span = tracing::info_span!("request", id);
    async move {
        let mut response = if door.draining.is_cancelled() && method == Method::POST {
            ApiError::unavailable("the server is shutting down; try again elsewhere or later")
                .into_response()
        } else {
            next.run(request).await
        };
        let status = response.status().as_u16();
        metrics::http_response(status);
        let Name { id: of_line, usage } = name;
        // The answer's sender keeps this line for as long as the answer lasts.
        let line = Line { id: of_line, method, path, status, started, usage, audit };
        response.extensions_mut().insert(Arc::new(line));
        if let Ok(value) = HeaderValue::from_str(&id) {
            response.headers_mut().insert(HEADER, value);
        }
        response
    }
    .instrument(span)
    .await
}

/// The path without what follows a `?`, which may be anything; cut to what a log can bear.
fn path_of(request: &Request) -> String {
    request.uri().path().chars().take(MAX_LOGGED_PATH).collect()
}

fn id_of(headers: &HeaderMap) -> String {
    headers
        .get(HEADER)
        .and_then(|value| value.to_str().ok())
        .filter(|id| !id.is_empty() && id.len() <= MAX_REQUEST_ID_BYTES)
        // A tab may stand in a header, but no worker takes it in an id.
        .filter(|id| !id.contains(char::is_control))
        .map_or_else(|| format!("req-{}", brigade_line::random::id()), str::to_string)
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
        assert!(id_of(&with("a\tb")).starts_with("req-"));
        assert!(id_of(&HeaderMap::new()).starts_with("req-"));
    }
}

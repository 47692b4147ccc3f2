//! Which web pages may call this server from a browser (CORS). Pages from this machine may by default: a page of
//! somebody else that a browser shows cannot read answers then.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Origins of pages that may read answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(Arc<[String]>);

impl Origins {
    /// These beside pages of this machine; `*`: all.
    pub fn new(origins: &[String]) -> Self {
        Self(origins.iter().map(|o| o.trim_end_matches('/').to_string()).collect())
    }

    fn allows(&self, origin: &str) -> bool {
        is_loopback(origin) || self.0.iter().any(|allowed| allowed == "*" || allowed == origin)
    }
}

/// Whether a page is served from this machine.
fn is_loopback(origin: &str) -> bool {
    let Some((_, host)) = origin.split_once("://") else { return false };
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

/// Answers browsers' questions, and marks answers that pages may read.
pub(super) async fn layer(
    State(origins): State<Origins>,
    request: Request,
    next: Next,
) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let origin = origin.filter(|origin| origin.to_str().is_ok_and(|o| origins.allows(o)));
    let asks = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let wanted = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let Some(origin) = origin else { return next.run(request).await };
    let mut response = match asks {
        true => StatusCode::NO_CONTENT.into_response(),
        false => next.run(request).await,
    };
    mark(response.headers_mut(), origin, wanted.filter(|_| asks));
    response
}

fn mark(headers: &mut HeaderMap, origin: HeaderValue, wanted: Option<HeaderValue>) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    let exposed = HeaderValue::from_static("x-request-id, retry-after");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    if let Some(wanted) = wanted {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted);
        let methods = HeaderValue::from_static("GET, POST, DELETE, OPTIONS");
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_this_machine_and_those_named_may_read() {
        let origins = Origins::new(&["https://chat.example/".to_string()]);
        for yes in
            ["http://localhost:3000", "http://127.0.0.1", "http://[::1]:8", "https://chat.example"]
        {
            assert!(origins.allows(yes), "{yes}");
        }
        for no in [
            "null",
            "https://evil.example",
            "http://localhost.evil.example",
            "https://chat.example:8",
        ] {
            assert!(!origins.allows(no), "{no}");
        }
        assert!(Origins::new(&["*".to_string()]).allows("https://evil.example"));
    }
}

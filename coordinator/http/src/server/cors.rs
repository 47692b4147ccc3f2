//! The web pages that may call this server from a browser (CORS).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderName, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tower::{Layer, ServiceExt};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::error::ApiError;

/// The header in which browsers say where a request comes from. No page can change it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// A body of this kind no page of another origin sends before the server was asked and has allowed it, and none that shows
/// a key in one of these headers.
const ASKED_FIRST: &str = "application/json";
const KEYS: [HeaderName; 3] = [
    header::AUTHORIZATION,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
];

/// Longest part of an origin that is told back.
const MAX_TOLD_CHARS: usize = 100;

/// Time for which a browser need not ask again.
const MAX_AGE: Duration = Duration::from_secs(600);

/// Origins of pages that may read answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origins(Arc<[String]>);

impl Origins {
    /// Allows these origins beside pages of this machine; `*`: all.
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

/// Whether a browser sends this request for a page of another origin without a preflight request.
fn is_of_a_foreign_page(request: &Request, origin: &str) -> bool {
    let headers = request.headers();
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_json = text(header::CONTENT_TYPE).is_some_and(|kind| {
        kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case(ASKED_FIRST))
    });
    if *request.method() != Method::POST || is_json || KEYS.iter().any(|k| headers.contains_key(k))
    {
        return false;
    }
    if text(SEC_FETCH_SITE).is_some_and(|site| matches!(site, "same-origin" | "none")) {
        return false;
    }
    match origin.split_once("://") {
        Some(("http" | "https", host)) => {
            let of_target = request.uri().authority().map(|authority| authority.as_str());
            let asked = text(header::HOST).or(of_target);
            !asked.is_some_and(|asked| asked.eq_ignore_ascii_case(host))
        }
        // Programs and extensions have schemes of their own.
        Some(_) => false,
        // `null` is the origin of pages that hide where they are from.
        None => true,
    }
}

fn refused(origin: &str) -> ApiError {
    let told: String = origin.chars().take(MAX_TOLD_CHARS).collect();
    let message = format!(
        "a web page of {told:?} makes a browser ask this, and pages of other machines may not: `brigade serve --cors \
         {told}` lets it; programs send application/json"
    );
    ApiError::forbidden("origin_not_allowed", message)
}

/// The layer for pages that may read: it answers browsers' preflight requests, and marks answers as readable.
fn for_pages() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AllowOrigin::mirror_request())
        .allow_methods([Method::GET, Method::POST, Method::DELETE, Method::OPTIONS])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([HeaderName::from_static("x-request-id"), header::RETRY_AFTER])
        .max_age(MAX_AGE)
        .vary([header::ORIGIN])
}

/// Lets pages of `origins` read answers, and refuses what browsers send for others. All else passes as if it had no origin: an
/// `OPTIONS` of another page is not answered here, but held to the server's names as every request is.
pub(crate) async fn layer(
    State(origins): State<Origins>,
    request: Request,
    next: Next,
) -> Response {
    let Some(origin) = request.headers().get(header::ORIGIN) else {
        return next.run(request).await;
    };
    let origin = origin.to_str().unwrap_or_default();
    if origins.allows(origin) {
        return for_pages().layer(next).oneshot(request).await.into_response();
    }
    if is_of_a_foreign_page(&request, origin) {
        return refused(origin).into_response();
    }
    next.run(request).await
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
    #[test]
    fn a_page_of_somebody_else_makes_no_browser_ask() {
        let foreign = |origin: &str, more: &[(&str, &str)]| {
            let mut request =
                Request::post("/v1/completions").header(header::HOST, "chat.lan:8080");
            for (name, value) in more {
                request = request.header(*name, *value);
            }
            let request = request.body(axum::body::Body::empty()).unwrap();
            is_of_a_foreign_page(&request, origin)
        };
        let form = ("content-type", "text/plain");
        for origin in
            ["https://evil.example", "null", "", "http://chat.lan", "http://chat.lan:8081"]
        {
            assert!(foreign(origin, &[]) && foreign(origin, &[form]), "{origin}");
            assert!(foreign(origin, &[form, ("sec-fetch-site", "cross-site")]), "{origin}");
            // These a browser sends only after it has asked, or says itself where they are from.
            for more in [
                ("content-type", "application/json; charset=utf-8"),
                ("authorization", "Bearer x"),
                ("x-api-key", "x"),
                ("sec-fetch-site", "same-origin"),
            ] {
                assert!(!foreign(origin, &[more]), "{origin} {more:?}");
            }
        }
        for origin in
            ["http://chat.lan:8080", "https://Chat.LAN:8080", "app://desk", "chrome-extension://x"]
        {
            assert!(!foreign(origin, &[form]), "{origin}");
        }
    }
}

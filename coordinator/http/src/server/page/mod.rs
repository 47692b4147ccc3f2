//! The page at `/`: a chat with the model and a view of the line, from files in the binary. It sends requests to this
//! server only.

use axum::http::{HeaderName, header};
use axum::response::IntoResponse;

/// The page's content security policy: nothing is loaded from elsewhere, and no page may show this one in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

type File = ([(HeaderName, &'static str); 4], &'static str);

fn file(kind: &'static str, text: &'static str) -> File {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, text)
}

/// Handles `GET /`: the page's HTML.
pub(crate) async fn index() -> impl IntoResponse {
    file("text/html; charset=utf-8", include_str!("index.html"))
}

/// `GET /page.css`.
pub(crate) async fn style() -> impl IntoResponse {
    file("text/css; charset=utf-8", include_str!("page.css"))
}

/// `GET /page.js`.
pub(crate) async fn script() -> impl IntoResponse {
    file("text/javascript; charset=utf-8", include_str!("page.js"))
}

/// `GET /markdown.js`.
pub(crate) async fn markdown() -> impl IntoResponse {
    file("text/javascript; charset=utf-8", include_str!("markdown.js"))
}

/// `GET /chats.js`.
pub(crate) async fn chats() -> impl IntoResponse {
    file("text/javascript; charset=utf-8", include_str!("chats.js"))
}

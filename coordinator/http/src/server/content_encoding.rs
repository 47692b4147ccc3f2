//! Refuses compressed bodies before they are read. The error names the encoding that is taken: none.

use axum::extract::Request;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;

/// The one that means none.
const IDENTITY: &str = "identity";

/// Longest part of a coding that is told back.
const MAX_TOLD_CHARS: usize = 100;

/// The first coding of the body that changes its bytes.
fn changed(headers: &HeaderMap) -> Option<String> {
    let all = headers.get_all(CONTENT_ENCODING).iter();
    let texts = all.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    texts.into_iter().find_map(|text| {
        let mut codings = text.split(',').map(str::trim);
        let changes = codings.find(|c| !c.is_empty() && !c.eq_ignore_ascii_case(IDENTITY))?;
        Some(changes.chars().take(MAX_TOLD_CHARS).collect())
    })
}

/// Refuses bodies that are compressed.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    let Some(coding) = changed(request.headers()) else { return next.run(request).await };
    let message = format!(
        "the request's Content-Encoding is {coding:?}: bodies are taken uncompressed (identity) only, so send it \
         without that header and as it is"
    );
    let mut response = ApiError::unsupported_media(message).into_response();
    response.headers_mut().insert(ACCEPT_ENCODING, HeaderValue::from_static(IDENTITY));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_changes_the_bytes_is_found() {
        let of = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(CONTENT_ENCODING, value.parse().unwrap());
            }
            changed(&headers)
        };
        assert_eq!(of(&[]), None);
        assert_eq!(of(&["identity", "Identity,, "]), None);
        for coding in ["gzip", "deflate", "br", "zstd", "x-gzip", "aws-chunked"] {
            assert_eq!(of(&[coding]).as_deref(), Some(coding));
            assert_eq!(of(&["identity", &format!("identity , {coding}")]).as_deref(), Some(coding));
        }
    }
}

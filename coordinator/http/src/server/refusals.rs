//! Errors in the form of the API that was asked. Anthropic's and Ollama's addresses have forms of their own. Layers
//! in front of the handlers (keys, hosts, encodings, limits) know one form only, and need not know the API.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::Response;
use serde_json::Value;

use crate::compat::anthropic;
use crate::compat::ollama;
use crate::error::ApiError;

/// How an API writes an error, where it is not OpenAI's way.
type Form = fn(&ApiError) -> Value;

/// The form of errors at an address; `None`: OpenAI's.
fn form_of(path: &str) -> Option<Form> {
    let is_below = |root: &str| {
        path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    match path {
        _ if is_below(anthropic::ROOT) => Some(anthropic::error_body),
        _ if is_below(ollama::ROOT) => Some(ollama::error_body),
        _ => None,
    }
}

/// Writes errors anew where the address has another form than OpenAI's; status and headers stay.
pub(crate) async fn layer(request: Request, next: Next) -> Response {
    let form = form_of(request.uri().path());
    let response = next.run(request).await;
    let Some((form, error)) = form.zip(response.extensions().get::<ApiError>()) else {
        return response;
    };
    let body = Body::from(form(error).to_string());
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    Response::from_parts(parts, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_the_form_of_their_api() {
        let error = ApiError::rate_limited("too many", 7);
        let body = |path: &str| form_of(path).map(|form| form(&error).to_string());
        assert_eq!(body("/api/chat").as_deref(), Some(r#"{"error":"too many"}"#));
        let anthropic = body("/v1/messages/count_tokens").unwrap_or_default();
        assert!(anthropic.contains(r#""type":"rate_limit_error""#), "{anthropic}");
        assert_eq!(body("/v1/messages"), Some(anthropic));
        for path in ["/v1/chat/completions", "/v1/messagesx", "/apix", "/", "/tokenize"] {
            assert_eq!(body(path), None, "{path}");
        }
    }
}

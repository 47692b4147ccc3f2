//! Error answers in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.
//!
//! There is one type for every refusal. Client libraries choose their exception by its status and `code`. The
//! message names the field, the limit, and what to do.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header::RETRY_AFTER, header::WWW_AUTHENTICATE};
use axum::response::{IntoResponse, Response};
use brigade_line::failure::{Failure, Remedy, Told};
use brigade_line::handle::SubmitError;
use brigade_line::health::Loading;
use brigade_line::request::RequestError;
use brigade_sched::TooLong;
use brigade_text::TextError;
use serde_json::{Value, json};

/// Longest message: what a client has sent stands in some, and need not come back as a whole.
const MAX_MESSAGE_CHARS: usize = 4096;

/// A request that gets an error object instead of a result.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError(Box<Parts>);

#[derive(Clone, Debug, PartialEq)]
struct Parts {
    status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
    retry_after_s: Option<u64>,
    /// Facts beside the message, such as the two numbers of an over-long prompt.
    extra: Vec<(&'static str, u64)>,
    /// How far a model is that is being loaded.
    loading: Option<Value>,
    /// Whether another model might have taken the same request.
    is_of_model: bool,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if let Some((at, _)) = message.char_indices().nth(MAX_MESSAGE_CHARS) {
            message.truncate(at);
            message.push_str(" ...");
        }
        Self(Box::new(Parts {
            status,
            kind,
            code: None,
            param: None,
            message,
            retry_after_s: None,
            extra: Vec::new(),
            loading: None,
            is_of_model: false,
        }))
    }

    /// The same error, which another model might not have given.
    pub fn of_model(mut self) -> Self {
        self.0.is_of_model = true;
        self
    }

    /// Whether the request is refused whatever its line is like. `knows_model`: its model was read; otherwise whatever that is
    /// like, too.
    pub fn is_final(&self, knows_model: bool) -> bool {
        let status = self.0.status;
        let of_request = status.is_client_error() || status == StatusCode::NOT_IMPLEMENTED;
        let of_any_model = status != StatusCode::NOT_IMPLEMENTED && !self.0.is_of_model;
        of_request && (knows_model || of_any_model)
    }

    /// 400 about one field of the request.
    pub fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message);
        error.0.param = Some(param.into());
        error
    }

    /// 400 about the request as a whole.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// 400 for something well-formed that this server or model cannot do.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        let mut error = Self::field(param, message);
        error.0.code = Some("unsupported_parameter");
        error
    }

    /// 501 for what the model that is served, or any that runs here, cannot do.
    pub fn not_implemented(message: impl Into<String>) -> Self {
        let status = StatusCode::NOT_IMPLEMENTED;
        let mut error = Self::new(status, "not_supported_error", message);
        error.0.code = Some("not_supported");
        error
    }

    /// 404 for an address or a model that does not exist here.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
    }

    /// 405 for a known address.
    pub fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", message)
    }

    /// 401: no key, or one that opens nothing.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::UNAUTHORIZED, "authentication_error", message);
        error.0.code = Some("invalid_api_key");
        error
    }

    /// 403: a key that may not do this.
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::FORBIDDEN, "permission_error", message);
        error.0.code = Some(code);
        error
    }

    /// 429 for a limit of the client's key.
    pub fn rate_limited(message: impl Into<String>, retry_after_s: u64) -> Self {
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        error.0.code = Some("rate_limit_exceeded");
        error.0.retry_after_s = Some(retry_after_s);
        error
    }

    /// 408 for a request whose own `timeout` has passed.
    fn too_late(message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::REQUEST_TIMEOUT, "timeout_error", message);
        error.0.code = Some("timeout");
        error
    }

    /// 429 while as many requests wait as may.
    fn queue_full(message: impl Into<String>, retry_after_s: u64) -> Self {
        let mut error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message);
        error.0.code = Some("queue_full");
        error.0.retry_after_s = Some(retry_after_s);
        error
    }

    /// 409 for an order that cannot be carried out as things are.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "invalid_request_error", message)
    }

    /// 415 for a body that is written in another way than is taken.
    pub fn unsupported_media(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", message)
    }

    /// 421 for a request that is for another server, by its `Host`.
    pub fn misdirected(message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::MISDIRECTED_REQUEST, "permission_error", message);
        error.0.code = Some("host_not_allowed");
        error
    }

    /// 413 with the limit in the message.
    pub fn too_large(limit_bytes: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            format!(
                "the request body is larger than {limit_bytes} bytes, the limit of this server"
            ),
        )
    }

    /// 408 for a body that does not come.
    pub fn too_slow(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "invalid_request_error", message)
    }

    /// 503 while large requests of others fill the room for them.
    pub fn crowded() -> Self {
        Self::unavailable(
            "the server holds as many large requests as it can; try again in a few seconds",
        )
    }

    /// 429 where the other requests of the key hold all the room that one key's bodies may have.
    pub fn crowded_by_key(bytes: usize) -> Self {
        let message = format!(
            "the bodies of this API key's requests hold {} MiB, the limit of one key: send the next one when \
             one of them is answered",
            bytes >> 20
        );
        Self::rate_limited(message, 1)
    }

    /// 503 while there is no line of workers to run the request.
    pub fn unavailable(message: impl Into<String>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message);
        error.0.retry_after_s = Some(RETRY_AFTER_UNAVAILABLE_S);
        error
    }

    /// 503 while the model of a request is being loaded: how far it is, as far as that is known.
    pub fn loading(model: &str, loading: &Loading) -> Self {
        let mut error = Self::unavailable(format!(
            "the model {model} is being loaded: ask again in a few seconds"
        ));
        error.0.code = Some("model_loading");
        if let Some(seconds) = loading.seconds_left {
            error.0.retry_after_s = Some(seconds.clamp(1, MAX_RETRY_AFTER_S));
        }
        error.0.loading = Some(json!({
            "state": "loading", "model": model, "progress": loading.share(), "eta_seconds": loading.seconds_left,
        }));
        error
    }

    /// 503 while the model of a request is being fetched from where it is: how many bytes are here.
    pub fn fetching(model: &str, loading: &Loading) -> Self {
        let mut error = Self::loading(model, loading);
        error.0.message = format!("the model {model} is being fetched: ask again in a few seconds");
        let bytes = |n: u64| (loading.total_bytes > 0).then_some(n);
        if let Some(told) = &mut error.0.loading {
            told["state"] = json!("fetching");
            told["done_bytes"] = json!(bytes(loading.done_bytes));
            told["total_bytes"] = json!(bytes(loading.total_bytes));
        }
        error
    }

    /// 500 for a failure that is not the client's doing.
    pub fn server(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The same in the names of another API: `names` has what a field is called here, and there. The first that fits counts.
    pub fn renamed(mut self, names: &[(String, String)]) -> Self {
        let Some(param) = &self.0.param else { return self };
        let renamed = names.iter().find_map(|(here, there)| {
            let rest = param.strip_prefix(here.as_str())?;
            let is_whole = rest.is_empty() || rest.starts_with(['.', '[']);
            is_whole.then(|| format!("{there}{rest}"))
        });
        if let Some(renamed) = renamed {
            self.0.message = self.0.message.replacen(param.as_str(), &renamed, 1);
            self.0.param = Some(renamed);
        }
        self
    }

    /// The code by which programs recognise the error.
    pub fn set_code(&mut self, code: &'static str) {
        self.0.code = Some(code);
    }

    /// The HTTP status of the answer.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// The JSON object, also sent as the last event of a stream that fails on the way.
    pub fn body(&self) -> Value {
        let mut error = json!({
            "message": self.0.message,
            "type": self.0.kind,
            "param": self.0.param,
            "code": self.0.code,
        });
        for (name, value) in &self.0.extra {
            error[*name] = json!(value);
        }
        let mut body = json!({ "error": error });
        if let Some(loading) = &self.0.loading {
            body["loading"] = loading.clone();
        }
        body
    }
}

/// Longest time after which a client is told to ask again for a model that is being loaded.
const MAX_RETRY_AFTER_S: u64 = 60;

/// When a client may try again after 503: a line is re-planned and reloaded within seconds.
const RETRY_AFTER_UNAVAILABLE_S: u64 = 5;

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.0.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        if let Some(seconds) = self.0.retry_after_s {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.0.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if self.0.code == Some("timeout") {
            // OpenAI's clients send a request that got 408 again, unless they are told this.
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        // For addresses whose API has another form (`refusals`).
        response.extensions_mut().insert(self);
        response
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        let mut api = Self::field(error.field(), error.to_string());
        let counts = match error {
            RequestError::TooLong(TooLong { prompt: n_prompt, limit: n_ctx, .. }) => {
                vec![("n_prompt_tokens", n_prompt), ("n_ctx", n_ctx)]
            }
            RequestError::LongerThanUbatch { n_prompt, most } => {
                vec![("n_prompt_tokens", n_prompt), ("n_ctx", most)]
            }
            RequestError::TextTooLong { n_ctx, .. } => vec![("n_ctx", n_ctx)],
            _ => return api,
        };
        api.0.code = Some("context_length_exceeded");
        api.0.extra = counts;
        api
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let message = error.to_string();
        match error {
            SubmitError::QueueFull(full) => Self::queue_full(message, full.retry_after_s),
            SubmitError::NotLoaded => Self::unavailable(message),
            SubmitError::Unavailable { reason } => {
                tracing::warn!(reason, "no requests can run now");
                Self::unavailable(
                    "no requests can run now: the line of workers is not up; /health says how far it \
                     is, the server's log why",
                )
            }
            SubmitError::Invalid(error) => error.into(),
        }
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        let message = error.to_string();
        let api = match error {
            TextError::BadStop(_) => return Self::field("stop", message),
            TextError::TooLong { .. } => return Self::field("prompt", message),
            TextError::NoTemplate | TextError::BadTemplate(_) => Self::field(
                "messages",
                format!("{message}: --chat-template gives another one, where the model is started"),
            ),
            TextError::Template(_) => Self::field("messages", message),
            TextError::Encoder(_) => Self::field("model", message),
            TextError::BadToken { .. } | TextError::NoVocab => Self::field("prompt", message),
            TextError::BadVocab(_) | TextError::Unsupported(_) | TextError::Gguf(_) => {
                Self::server(message)
            }
        };
        api.of_model()
    }
}

/// The error that a client sees. A failure's reason names workers and their addresses, so it goes to the log only,
/// under the request's id.
impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        tracing::warn!(%failure, "a request failed");
        let Told { sentence, remedy } = failure.told();
        match remedy {
            Remedy::Retry => Self::unavailable(sentence),
            Remedy::Wait { retry_after_s } => Self::queue_full(sentence, retry_after_s),
            Remedy::MoreTime => Self::too_late(sentence),
            Remedy::AnotherRequest => Self::bad_request(sentence),
            Remedy::AnotherKey => Self::unauthorized(sentence),
            Remedy::None => Self::server(sentence),
        }
    }
}

#[cfg(test)]
mod tests {
    use brigade_engine::constraint::ConstraintError;
    use brigade_engine::sample::SampleError;
    use brigade_sched::{QueueFull, Unfinished};

    use super::*;

    #[test]
    fn a_full_queue_says_when_to_come_back() {
        let full = QueueFull { waiting: 64, retry_after_s: 3 };
        let error = ApiError::from(SubmitError::QueueFull(full));
        assert_eq!(error.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(error.into_response().headers()[RETRY_AFTER], "3");
    }

    #[test]
    fn reasons_stay_in_the_log() {
        let reason = || "worker 10.1.2.3:7070: it did not answer 3 heartbeats".to_string();
        for error in [
            ApiError::from(Failure::Unfinished(Unfinished::LineLost {
                reason: reason(),
                generated: 7,
            })),
            ApiError::from(Failure::Unfinished(Unfinished::NoToken {
                reason: reason(),
                generated: 7,
            })),
            ApiError::from(Failure::Internal { reason: reason() }),
            ApiError::from(SubmitError::Unavailable { reason: reason() }),
        ] {
            let text = error.body().to_string();
            assert!(!text.contains("10.1.2.3") && text.contains("log"), "{text}");
        }
    }

    #[test]
    fn a_grammar_that_gives_no_token_is_the_requests_fault() {
        for error in [
            ConstraintError::Stuck("too many items".to_string()),
            ConstraintError::Grammar("too large".to_string()),
        ] {
            let reason = format!("sequence 3: {error}");
            let error =
                ApiError::from(Failure::Unfinished(Unfinished::NoToken { reason, generated: 7 }));
            assert_eq!(error.status(), StatusCode::BAD_REQUEST);
            assert!(error.body()["error"]["message"].as_str().unwrap().contains("7 generated"));
        }
    }

    #[test]
    fn a_ban_of_all_that_is_allowed_is_the_requests_fault() {
        let reason = format!("sequence 3: {}", SampleError::NothingLeft);
        let error =
            ApiError::from(Failure::Unfinished(Unfinished::NoToken { reason, generated: 7 }));
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        let body = error.body();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("7 generated") && message.contains("logit_bias"), "{message}");
    }

    #[test]
    fn what_comes_back_of_a_request_is_bounded() {
        let of = |n: usize| {
            let body = ApiError::not_found("ä".repeat(n)).body();
            body["error"]["message"].as_str().unwrap().chars().count()
        };
        assert_eq!(
            (of(MAX_MESSAGE_CHARS), of(100_000)),
            (MAX_MESSAGE_CHARS, MAX_MESSAGE_CHARS + 4)
        );
    }

    #[test]
    fn a_long_prompt_names_both_numbers() {
        let long = TooLong { prompt: 5000, max_tokens: 0, limit: 4096 };
        let body = ApiError::from(RequestError::TooLong(long)).body();
        assert_eq!(body["error"]["n_prompt_tokens"], 5000);
        assert_eq!(body["error"]["n_ctx"], 4096);
        assert_eq!(body["error"]["code"], "context_length_exceeded");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("5000") && message.contains("4096"), "{message}");
    }
}

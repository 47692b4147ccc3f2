//! The HTTP server: OpenAI's JSON outside, [`Engine`](brigade_line::handle::Engine) inside. No other crate knows that
//! JSON.
//!
//! There are two listeners: clients' ([`router`]), where a request may need a key, and the operator's
//! ([`admin_router`]). Requests are read leniently and answered strictly. A field or value that cannot be honoured is
//! refused by name. Time, connections and memory of each client are bounded. The server knows nothing of workers or
//! schedules, and tells clients nothing of them.
//!
//! Each room uses those above it in this list only; `tests/tidy` holds that:
//!
//! - `clients`: the client behind a request. `access` checks keys, `usage` counts tokens, `audit` logs requests, and
//!   `shares` divides common resources between keys.
//! - `request`: parsing. `bodies` receives a body, `fields` and `value` read its JSON. `params` and its neighbours
//!   read fields that several addresses share, `chat_request` reads a chat. `ignored_fields` lists the fields that are
//!   ignored.
//! - `events`: server-sent events (`sse`, `writer`), and streams that outlive their readers (`resumable`).
//! - `answer`: `choices` runs sequences, `chat_answer` and `blocks` parse their text, `pooled` makes vectors.
//! - `openai` and `compat`: handlers of OpenAI's interface, and of other interfaces.
//! - `server`: `router` has the addresses. `serve` takes connections, `trace` wraps every request, `hosts`, `cors`
//!   and `content_encoding` refuse requests that are not for this server, `guard` checks a request's key and chooses
//!   its model.
//!
//! [`App`] is a model as handlers see it, [`Fleet`] holds all models, and [`ApiError`] is the type of every refusal.

mod answer;
mod app;
mod clients;
mod compat;
mod error;
mod events;
mod fleet;
mod openai;
mod request;
mod server;
#[cfg(test)]
mod tests;

use brigade_line::request::Limits;

use crate::openai::{chat, completions};

pub use app::{App, Door};
pub use clients::access::Access;
pub use clients::audit::{Audit, AuditOptions, DEFAULT_AUDIT_BYTES};
pub use clients::concurrency::UnderWay;
pub use error::ApiError;
pub use events::resumable::Streams;
pub use fleet::{
    Coming, Fetch, Fetched, Fetcher, Fleet, FleetError, Loader, Looking, Member, NotLoaded, Source,
    Wish,
};
pub use request::bodies::{Bodies, BodyTimes, MAX_BODIES_BYTES, MAX_BODY_BYTES};
pub use server::admin::admin_router;
pub use server::cors::Origins;
pub use server::hosts::{Hosts, allowed_host};
pub use server::https::{Renewer, Tls, TlsError, TlsFiles};
pub use server::recover::go_on;
pub use server::router::router;
pub use server::serve::{ConnectionLimits, HEAD_WITHIN, MAX_CONNECTIONS, serve};
pub use server::while_loading::MODEL_WITHIN;

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
/// The error that the client would get.
pub fn check_body(endpoint: Endpoint, body: &[u8], limits: &Limits) -> Result<(), ApiError> {
    match endpoint {
        Endpoint::Chat => chat::check(body, limits),
        Endpoint::Completion => completions::check(body, limits),
    }
}

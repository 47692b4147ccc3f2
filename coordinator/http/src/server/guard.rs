//! A layer around all handlers of the public listener. It checks a request's key with
//! [`Access`](crate::clients::access::Access), counts the request, and adds headers that say what is left of the
//! key's budget. It lies inside of [`trace`](crate::server::trace), so that refusals have an id and a log line too.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use brigade_line::keys::{Account, Left, Refusal, Standing, Ticket};

use crate::clients::access::HEALTH;
use crate::clients::connections::Peer;
use crate::clients::name::Name;
use crate::clients::shares::Part;
use crate::error::ApiError;
use crate::fleet::Fleet;
use crate::openai::models;
use crate::openai::reconnect::STREAMS;
use crate::server::while_loading::Ready;

/// Addresses about all models of a key, of which there may be none yet.
const OF_ALL_MODELS: [&str; 3] = ["/api/tags", "/api/ps", "/api/version"];

/// Wraps every handler of the public listener.
pub(crate) async fn guard(
    State(fleet): State<Fleet>,
    Extension(name): Extension<Name>,
    request: Request,
    next: Next,
) -> Response {
    let door = fleet.door();
    let owner = match door.access.owner(&request) {
        Ok(owner) => owner,
        Err(error) => return error.into_response(),
    };
    let Some(owner) = owner else {
        return match ready(&fleet, &name, request, &next).await {
            Ok(ready) => ready.answer(&name, next).await,
            Err(error) => error.into_response(),
        };
    };
    if let Some(peer) = request.extensions().get::<Arc<Peer>>() {
        peer.has_shown_a_key();
    }
    name.usage.belongs_to(owner.clone());
    let account = owner.account;
    let mut response = match begin(&fleet, &name, &account, request, &next).await {
        Ok(Begun { ready, place, ticket }) => {
            if let Some(ticket) = &ticket {
                name.usage.runs(ticket.clone());
            }
            let mut response = ready.answer(&name, next).await;
            // It ends with the answer, or with a sequence that goes on while its client is away.
            response.extensions_mut().insert(ticket);
            response.extensions_mut().insert(place);
            response
        }
        Err(error) => error.into_response(),
    };
    say_limits(response.headers_mut(), &account.standing(Instant::now()));
    response
}

/// A request that may go on.
struct Begun {
    ready: Ready,
    /// The request's part of its key's limit of answers.
    place: Arc<Part>,
    /// The request's part of its key's limit of running requests.
    ticket: Option<Arc<Ticket>>,
}

/// Chooses the request's model and counts it, or says what forbids it.
async fn begin(
    fleet: &Fleet,
    name: &Name,
    account: &Account,
    request: Request,
    next: &Next,
) -> Result<Begun, ApiError> {
    let place = Arc::new(fleet.door().under_way.begin(name.tenant())?);
    let method = request.method().clone();
    // Nothing is loaded for a request that a limit of its key forbids. It is counted when it runs.
    if method == Method::POST {
        account.check(Instant::now()).map_err(told)?;
    }
    let ready = ready(fleet, name, request, next).await?;
    let ticket = counted(account, &method)?.map(Arc::new);
    Ok(Begun { ready, place, ticket })
}

/// The request, with its model, or with the events that are sent until the model is loaded.
async fn ready(
    fleet: &Fleet,
    name: &Name,
    request: Request,
    next: &Next,
) -> Result<Ready, ApiError> {
    // Anyone may ask for the server's health; a stream's owner follows from its id.
    match request.uri().path() {
        HEALTH => Ok(Ready::Now(Box::new(request))),
        path if OF_ALL_MODELS.contains(&path) => Ok(Ready::Now(Box::new(request))),
        path if path.starts_with(STREAMS) || path.starts_with(models::PATH) => {
            Ok(Ready::Now(Box::new(request)))
        }
        _ => fleet.choose(name, request).await?.ready(name, fleet.door(), next).await,
    }
}

/// Counts the request, or says what forbids it. Looking around is free.
fn counted(account: &Account, method: &Method) -> Result<Option<Ticket>, ApiError> {
    if method != Method::POST {
        return Ok(None);
    }
    account.begin(Instant::now()).map(Some).map_err(told)
}

/// What a client is told that has reached a limit of its key.
fn told(refusal: Refusal) -> ApiError {
    let retry = seconds_up(refusal.retry());
    let again = match refusal {
        Refusal::Concurrent { .. } => "send the next one when one of them has ended".to_string(),
        _ => format!("try again in {retry} s"),
    };
    ApiError::rate_limited(format!("{refusal}: {again}"), retry)
}

fn seconds_up(wait: Duration) -> u64 {
    (wait.as_secs_f64().ceil() as u64).max(1)
}

/// The headers in which OpenAI's server tells limits.
fn say_limits(headers: &mut HeaderMap, standing: &Standing) {
    let quotas = [("requests", standing.requests), ("tokens", standing.tokens)];
    for (what, left) in quotas {
        let Some(Left { limit, remaining, reset }) = left else { continue };
        let lines = [
            (format!("x-ratelimit-limit-{what}"), limit.to_string()),
            (format!("x-ratelimit-remaining-{what}"), remaining.to_string()),
            (format!("x-ratelimit-reset-{what}"), short(reset)),
        ];
        for (name, value) in lines {
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), value.try_into()) {
                headers.insert(name, value);
            }
        }
    }
}

/// A time as OpenAI's server writes it: `20ms`, `7s`, `6m0s`.
fn short(time: Duration) -> String {
    if time < Duration::from_secs(1) {
        return format!("{}ms", time.as_millis());
    }
    match seconds_up(time) {
        seconds @ ..60 => format!("{seconds}s"),
        seconds => format!("{}m{}s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_does() {
        let of = |ms| short(Duration::from_millis(ms));
        assert_eq!(
            [of(0), of(20), of(6_500), of(59_001), of(360_000)],
            ["0ms", "20ms", "7s", "1m0s", "6m0s"]
        );
    }
}

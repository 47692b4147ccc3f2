//! A layer around all handlers of the public listener, inside of [`trace`](super::trace), so that a refusal has an
//! id and a line too: it asks [`Access`](super::access::Access) whose a request is, counts it, and says what is left.
//! One key has so many requests under way that others still find a connection ([`under_way`](super::under_way)).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use brigade_line::keys::{Account, Left, Refusal, Standing, Ticket};

use super::app::App;
use super::error::ApiError;
use super::name::Name;
use super::open::Peer;

/// Wraps every handler of the public listener.
pub(super) async fn guard(State(app): State<App>, request: Request, next: Next) -> Response {
    let owner = match app.access.owner(&request) {
        Ok(Some(owner)) => owner,
        Ok(None) => return next.run(request).await,
        Err(error) => return error.into_response(),
    };
    if let Some(peer) = request.extensions().get::<Arc<Peer>>() {
        peer.has_shown_a_key();
    }
    let name = request.extensions().get::<Name>().cloned();
    if let Some(name) = &name {
        name.tally.belongs_to(owner.clone());
    }
    let account = owner.account;
    let place = app.under_way.begin(name.as_ref().and_then(Name::tenant));
    let begun = place.and_then(|place| {
        Ok((Arc::new(place), begin(&account, request.method(), app.text.name())?))
    });
    let mut response = match begun {
        Ok((place, ticket)) => {
            let ticket = ticket.map(Arc::new);
            if let Some((name, ticket)) = name.zip(ticket.clone()) {
                name.tally.runs(ticket);
            }
            let mut response = next.run(request).await;
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

/// Counts the request, or says what forbids it. Looking around is free.
fn begin(account: &Account, method: &Method, model: &str) -> Result<Option<Ticket>, ApiError> {
    if method != Method::POST {
        return Ok(None);
    }
    if !account.record().may_use(model) {
        let message = format!("the API key may not use the model {model}");
        return Err(ApiError::forbidden("model_not_allowed", message));
    }
    account.begin(Instant::now()).map(Some).map_err(|refusal| {
        let retry = seconds_up(refusal.retry());
        let again = match refusal {
            Refusal::Concurrent { .. } => {
                "send the next one when one of them has ended".to_string()
            }
            _ => format!("try again in {retry} s"),
        };
        ApiError::rate_limited(format!("{refusal}: {again}"), retry)
    })
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

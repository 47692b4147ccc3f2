//! API keys: a request shows a key, and the key's limits hold for the request.
//!
//! `guard` checks every request. `/health` needs no key.

use axum::extract::{Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use brigade_line::clock;
use brigade_line::keys::{Account, KeyGroups, KeyRing, Keys};
use brigade_sched::Share;

use crate::clients::usage::Owner;
use crate::error::ApiError;

/// Headers that may hold a key by itself, beside `Authorization: Bearer`.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "api-key"];

/// The one address that everybody may see, and that is asked too often to be written down.
pub(crate) const HEALTH: &str = "/health";

/// Longer texts are no keys of ours.
const MAX_SECRET_BYTES: usize = 256;

/// How requests are authorised.
#[derive(Clone, Debug)]
pub enum Access {
    /// No key is needed: every peer that reaches the port may ask.
    Open,
    /// One of these keys is needed. While no key has been made, everybody may ask.
    Keys(KeyRing, KeyGroups),
}

/// The key that a client shows: the text of `Authorization: Bearer`, `x-api-key` or `api-key`.
fn secret(headers: &HeaderMap) -> Option<&str> {
    let bare = || KEY_HEADERS.iter().find_map(|name| headers.get(*name)?.to_str().ok());
    let found = headers.get(AUTHORIZATION).and_then(bearer).or_else(bare)?;
    (found.len() <= MAX_SECRET_BYTES).then_some(found)
}

fn bearer(value: &HeaderValue) -> Option<&str> {
    let (scheme, secret) = value.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| secret.trim())
}

/// The valid key that a request shows.
fn account<'k>(keys: &'k Keys, headers: &HeaderMap) -> Result<&'k Account, ApiError> {
    let Some(secret) = secret(headers) else {
        return Err(ApiError::unauthorized(
            "this server needs an API key: send it as `Authorization: Bearer KEY`",
        ));
    };
    // Never with the key itself: answers are logged by clients and proxies.
    let account = keys.find(secret).ok_or_else(|| {
        ApiError::unauthorized("the API key is not known here, or was revoked: ask for another one")
    })?;
    if account.record().has_expired(clock::unix_now()) {
        return Err(ApiError::unauthorized("the API key has expired: ask for another one"));
    }
    Ok(account)
}

impl Access {
    /// The key of a request to the public listener; `None` where none is needed.
    pub(crate) fn owner(&self, request: &Request) -> Result<Option<Owner>, ApiError> {
        let Self::Keys(ring, groups) = self else { return Ok(None) };
        let keys = ring.now();
        if !keys.are_required() || request.uri().path() == HEALTH {
            return Ok(None);
        }
        let account = account(&keys, request.headers())?.clone();
        if account.record().admin {
            let why = "this key opens the admin listener only: use another one here";
            return Err(ApiError::forbidden("admin_key", why));
        }
        Ok(Some(owner(&keys, groups, account)))
    }

    /// The key of a request that another coordinator had begun: the one with this number, or none where none was
    /// needed.
    ///
    /// # Errors
    /// The key may not use this server any more, so no client could fetch the answer.
    pub(crate) fn owner_again(&self, number: Option<u64>) -> Result<Option<Owner>, ApiError> {
        let keys = match self {
            Self::Keys(ring, groups) => Some((ring.now(), groups)),
            Self::Open => None,
        };
        match (keys.filter(|(keys, _)| keys.are_required()), number) {
            (None, None) => Ok(None),
            (Some((keys, groups)), Some(number)) => {
                let now = clock::unix_now();
                let is_it = |key: &&Account| {
                    key.number() == number && !key.record().admin && !key.record().has_expired(now)
                };
                let account = keys.accounts().into_iter().find(is_it).cloned();
                let gone = || ApiError::unauthorized("its API key was revoked or has expired");
                account.map(|account| Some(owner(&keys, groups, account))).ok_or_else(gone)
            }
            _ => Err(ApiError::unauthorized("it was begun before the server's keys were changed")),
        }
    }
}

fn owner(keys: &Keys, groups: &KeyGroups, account: Account) -> Owner {
    let share = Share {
        owner: account.number(),
        weight: account.record().priority.weight(),
        leaves_room: keys.are_several(),
    };
    let namespace = groups.namespace(&account);
    Owner { account, share, namespace }
}

/// Wraps what an admin's key is needed for: an admin listener beyond loopback, and orders.
pub(crate) async fn admins(
    State(ring): State<Option<KeyRing>>,
    request: Request,
    next: Next,
) -> Response {
    let keys = ring.map(|ring| ring.now()).unwrap_or_default();
    match account(&keys, request.headers()) {
        Err(error) => error.into_response(),
        Ok(account) if !account.record().admin => {
            let why = "the admin listener takes keys of `brigade key create NAME --admin` only";
            ApiError::forbidden("not_an_admin", why).into_response()
        }
        Ok(_) => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static(name), value.parse().unwrap())])
    }

    #[test]
    fn a_key_stands_in_one_of_three_headers() {
        for (name, value, want) in [
            ("authorization", "Bearer abc", Some("abc")),
            ("authorization", "bearer  abc", Some("abc")),
            ("authorization", "Basic abc", None),
            ("authorization", "abc", None),
            ("x-api-key", "abc", Some("abc")),
            ("api-key", "abc", Some("abc")),
            ("x-other", "abc", None),
        ] {
            assert_eq!(secret(&headers(name, value)), want, "{name}: {value}");
        }
        assert_eq!(secret(&headers("api-key", &"x".repeat(MAX_SECRET_BYTES + 1))), None);
    }
}

//! The admin listener: what an operator may see and clients may not, since it names workers and keys.

use std::time::Instant;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, middleware};
use brigade_line::admin::{Answer, Question, Refused};
use brigade_line::clock;
use brigade_line::keys::{Account, KeyRing, Left};
use serde_json::{Value, json};

use crate::clients::access::{self, Access};
use crate::error::ApiError;
use crate::fleet::{self, Fleet};
use crate::server::content_encoding;
use crate::server::hosts::{self, Hosts};
use crate::server::status;

/// The listener's addresses, for the error about an unknown one.
const ADDRESSES: &str = "here are GET /health, /metrics, /admin/keys, /admin/cache and /admin/cluster, and POST /admin/cluster";

/// All addresses of the admin listener. Orders to the cluster need a key that was made for it, of `keys`, since any
/// web page can send to a port of this machine; where `needs_key`, everything does. It is asked by the names in `hosts`.
pub fn admin_router(fleet: Fleet, keys: Option<KeyRing>, needs_key: bool, hosts: Hosts) -> Router {
    let admins = || middleware::from_fn_with_state(keys.clone(), access::admins);
    let router = Router::new()
        .route("/admin/cluster", post(order).layer(admins()).get(cluster_status))
        .route("/admin/cache", get(cache))
        .route("/health", get(status::health_with_reasons))
        .route("/metrics", get(status::metrics))
        .route("/admin/keys", get(of_keys))
        .fallback(async || ApiError::not_found(ADDRESSES))
        .with_state(fleet);
    let router = if needs_key { router.layer(admins()) } else { router };
    router
        .layer(middleware::from_fn(content_encoding::layer))
        .layer(middleware::from_fn_with_state(hosts, hosts::layer))
}

/// Forwards the question to the line of the model that the address names, or of the only one.
async fn ask(fleet: &Fleet, uri: &Uri, question: Question) -> Response {
    match fleet.for_operators(fleet::of_query(uri).as_deref()) {
        Ok(admin) => answer(admin.ask(question).await),
        Err(error) => error.into_response(),
    }
}

/// `GET /admin/cluster`: who has which layers.
async fn cluster_status(State(fleet): State<Fleet>, uri: Uri) -> Response {
    ask(&fleet, &uri, Question::Status).await
}

/// `GET /admin/cache`: what is kept of prompts, by owner.
async fn cache(State(fleet): State<Fleet>, uri: Uri) -> Response {
    ask(&fleet, &uri, Question::Cache).await
}

/// `POST /admin/cluster`: what `brigade cluster` says on its socket, such as `{"drain": {"worker": "10.0.0.2:7070"}}`.
async fn order(State(fleet): State<Fleet>, uri: Uri, body: Bytes) -> Response {
    match serde_json::from_slice::<Question>(&body) {
        Ok(question) => ask(&fleet, &uri, question).await,
        Err(error) => {
            ApiError::bad_request(format!("this is not an order: {error}")).into_response()
        }
    }
}

fn answer(answer: Result<Answer, Refused>) -> Response {
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(Refused(why)) => ApiError::conflict(why).into_response(),
    }
}

/// The keys in force and what they use; never their secrets.
async fn of_keys(State(fleet): State<Fleet>) -> Json<Value> {
    let Access::Keys(ring, _) = &fleet.door().access else {
        return Json(json!({ "required": false, "keys": [] }));
    };
    let keys = ring.now();
    let accounts: Vec<Value> = keys.accounts().into_iter().map(describe).collect();
    Json(json!({ "required": keys.are_required(), "keys": accounts }))
}

fn describe(account: &Account) -> Value {
    let (key, standing) = (account.record(), account.standing(Instant::now()));
    let left = |left: Option<Left>| {
        left.map(|left| {
            json!({ "limit_per_minute": left.limit, "remaining": left.remaining,
                    "full_after_seconds": left.reset.as_secs_f64() })
        })
    };
    json!({
        "name": key.name,
        "expired": key.has_expired(clock::unix_now()),
        "priority": key.priority,
        "admin": key.admin,
        "running": standing.running,
        "concurrent": key.concurrent,
        "requests": left(standing.requests),
        "tokens": left(standing.tokens),
    })
}

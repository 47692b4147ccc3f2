//! The admin listener: what an operator may see and clients may not, since it names workers and keys.

use std::time::Instant;

use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router, middleware};
use serde_json::{Value, json};

use super::access::{self, Access};
use super::error::ApiError;
use super::{App, status};
use crate::clock;
use crate::keys::{Account, KeyRing, Left};

/// All addresses of the admin listener. With `keys` they need one that was made for it.
pub fn admin_router(app: App, keys: Option<KeyRing>) -> Router {
    let router = Router::new()
        .route("/health", get(status::health_with_reasons))
        .route("/metrics", get(status::metrics))
        .route("/admin/keys", get(of_keys))
        .fallback(async || ApiError::not_found("here are GET /health, /metrics and /admin/keys"))
        .with_state(app);
    match keys {
        Some(keys) => router.layer(middleware::from_fn_with_state(keys, access::admins)),
        None => router,
    }
}

/// The keys in force and what they use; never their secrets.
async fn of_keys(State(app): State<App>) -> Json<Value> {
    let Access::Keys(ring) = &app.access else {
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

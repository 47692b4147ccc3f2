//! `GET /health` and `GET /metrics`: whether requests run, how far a load is, and what Prometheus reads.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::App;
use crate::handle::Status;
use crate::health::{Loading, Roll};

/// 200 while requests run, 503 otherwise, with how far it is and how many workers are there. What is done and why
/// something failed names workers: that is told with `--health-details` only, since who asks cannot be told from a
/// proxy on this machine.
pub(super) async fn health(State(app): State<App>) -> Response {
    if app.draining.is_cancelled() {
        return unavailable("stopping", json!({}));
    }
    let details = app.health_details;
    let mut body = json!({ "workers": workers(&app.roll.borrow(), details) });
    let mut tell = |key: &str, what: &str| {
        if details {
            body[key] = json!(what);
        }
    };
    match app.engine.status() {
        Status::Ready(_) => {
            body["status"] = json!("ok");
            Json(body).into_response()
        }
        Status::Loading(loading) => {
            tell("what", &loading.what);
            progress(&mut body, &loading);
            unavailable("loading", body)
        }
        Status::Down { reason, next } => {
            tell("reason", &reason);
            progress(&mut body, &next.unwrap_or_default());
            unavailable("down", body)
        }
        Status::Stopping => unavailable("stopping", json!({})),
        Status::Failed { reason } => {
            tell("reason", &reason);
            unavailable("failed", body)
        }
    }
}

fn unavailable(status: &str, mut body: Value) -> Response {
    body["status"] = json!(status);
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

fn progress(body: &mut Value, loading: &Loading) {
    body["done_bytes"] = json!(loading.done_bytes);
    body["total_bytes"] = json!(loading.total_bytes);
    body["bytes_per_second"] = json!(loading.bytes_per_second);
    body["seconds_left"] = json!(loading.seconds_left);
}

/// Numbers of workers and their memory, and with `details` their names.
fn workers(roll: &Roll, details: bool) -> Value {
    let mut workers = json!({
        "there": roll.there(),
        "line": roll.line.len(),
        "spare": roll.spare.len(),
        "missing": roll.missing.len(),
        "expected": roll.expected,
        "memory_bytes": roll.memory_bytes,
        "memory_needed_bytes": roll.memory_needed_bytes,
    });
    if details {
        let Roll { line, spare, waiting, missing, .. } = roll;
        let names = json!({ "line": line, "spare": spare, "waiting": waiting, "missing": missing });
        workers["names"] = names;
    }
    workers
}

/// Prometheus's text format.
pub(super) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    // Histograms collect samples until somebody drains them.
    app.metrics.run_upkeep();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
}

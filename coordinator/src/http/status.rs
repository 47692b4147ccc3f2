//! `GET /health` and `GET /metrics`.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::App;
use crate::handle::Status;

/// 200 while requests run, 503 otherwise, with how far it is. What is done and why something failed names workers:
/// that is told with `--health-details` only, since who asks cannot be told from a proxy on this machine.
pub(super) async fn health(State(app): State<App>) -> Response {
    if app.draining.is_cancelled() {
        return unavailable("stopping", json!({}));
    }
    let told = |details: serde_json::Value| if app.health_details { details } else { json!({}) };
    match app.engine.status() {
        Status::Ready(_) => Json(json!({ "status": "ok" })).into_response(),
        Status::Loading { what, done_bytes, total_bytes } => {
            let mut details = told(json!({ "what": what }));
            details["done_bytes"] = json!(done_bytes);
            details["total_bytes"] = json!(total_bytes);
            unavailable("loading", details)
        }
        Status::Down { reason } => unavailable("down", told(json!({ "reason": reason }))),
        Status::Stopping => unavailable("stopping", json!({})),
        Status::Failed { reason } => unavailable("failed", told(json!({ "reason": reason }))),
    }
}

fn unavailable(status: &str, mut details: serde_json::Value) -> Response {
    details["status"] = json!(status);
    (StatusCode::SERVICE_UNAVAILABLE, Json(details)).into_response()
}

/// Prometheus's text format.
pub(super) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    // Histograms collect samples until somebody drains them.
    app.metrics.run_upkeep();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
}

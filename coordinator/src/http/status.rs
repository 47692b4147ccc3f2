//! `GET /health` and `GET /metrics`.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use super::App;
use crate::handle::Status;

/// 200 while requests run, 503 with the reason otherwise.
pub(super) async fn health(State(app): State<App>) -> Response {
    if app.draining.is_cancelled() {
        return unavailable("stopping", json!({}));
    }
    match app.engine.status() {
        Status::Ready(_) => Json(json!({ "status": "ok" })).into_response(),
        Status::Loading { what, done_bytes, total_bytes } => unavailable(
            "loading",
            json!({ "what": what, "done_bytes": done_bytes, "total_bytes": total_bytes }),
        ),
        Status::Down { reason } => unavailable("down", json!({ "reason": reason })),
        Status::Stopping => unavailable("stopping", json!({})),
        Status::Failed { reason } => unavailable("failed", json!({ "reason": reason })),
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

//! `GET /health` and `GET /metrics`. Everybody hears whether requests run; operators hear also how far a load is,
//! who is there, and what Prometheus reads.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use brigade_line::handle::Status;
use brigade_line::health::{Loading, Roll};
use serde_json::{Value, json};

use super::app::App;

/// For everybody: 200 while requests run, 503 otherwise, and one word.
pub(super) async fn health(State(app): State<App>) -> Response {
    let (word, _) = state(&app);
    answer(word, json!({}))
}

/// For the operator: the same with how far it is, who is there, what is being done and why something failed. It
/// names workers.
pub(super) async fn health_with_reasons(State(app): State<App>) -> Response {
    let (word, mut body) = state(&app);
    body["workers"] = workers(&app.roll.borrow());
    answer(word, body)
}

const UP: &str = "ok";

/// What the server is doing, in a word and in full.
fn state(app: &App) -> (&'static str, Value) {
    if app.draining.is_cancelled() {
        return ("stopping", json!({}));
    }
    match app.engine.status() {
        Status::Ready(_) => (UP, json!({})),
        Status::Loading(loading) => {
            let mut body = json!({ "what": loading.what });
            progress(&mut body, &loading);
            ("loading", body)
        }
        Status::Down { reason, next } => {
            let mut body = json!({ "reason": reason });
            progress(&mut body, &next.unwrap_or_default());
            ("down", body)
        }
        Status::Stopping => ("stopping", json!({})),
        Status::Failed { reason } => ("failed", json!({ "reason": reason })),
    }
}

fn answer(word: &str, mut body: Value) -> Response {
    body["status"] = json!(word);
    let status = if word == UP { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(body)).into_response()
}

fn progress(body: &mut Value, loading: &Loading) {
    body["done_bytes"] = json!(loading.done_bytes);
    body["total_bytes"] = json!(loading.total_bytes);
    body["bytes_per_second"] = json!(loading.bytes_per_second);
    body["seconds_left"] = json!(loading.seconds_left);
}

/// Workers: their numbers, their memory, their names.
fn workers(roll: &Roll) -> Value {
    let Roll { line, spare, waiting, missing, .. } = roll;
    json!({
        "there": roll.there(),
        "line": line.len(),
        "spare": spare.len(),
        "missing": missing.len(),
        "expected": roll.expected,
        "memory_bytes": roll.memory_bytes,
        "memory_needed_bytes": roll.memory_needed_bytes,
        "names": { "line": line, "spare": spare, "waiting": waiting, "missing": missing },
    })
}

/// Prometheus's text format.
pub(super) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    // Histograms collect samples until somebody drains them.
    app.metrics.run_upkeep();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
}

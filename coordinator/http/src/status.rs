//! `GET /health` and `GET /metrics`. Everybody hears whether requests run; operators hear also how far a load is,
//! who is there, and what Prometheus reads.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use brigade_line::handle::Status;
use brigade_line::health::{Loading, Roll};
use serde_json::{Map, Value, json};

use super::app::App;
use super::fleet::{self, Fleet, Member};

/// For everybody: 200 while requests run, 503 otherwise, and one word.
pub(super) async fn health(State(fleet): State<Fleet>, uri: Uri) -> Response {
    let model = fleet::of_query(&uri);
    let asked = |app: &App| model.as_deref().is_none_or(|model| app.text.serves(model));
    // Up is who would take a request, and load the model for it.
    let word = |member: &Member| {
        let app = member.now();
        let word = if member.takes() && !fleet.is_draining() { UP } else { state(&app).0 };
        asked(&app).then_some(word)
    };
    let words: Vec<&str> = fleet.all().iter().filter_map(word).collect();
    let up = words.iter().find(|word| **word == UP).or(words.first());
    match up {
        Some(word) => answer(word, json!({})),
        None => {
            super::model_name::not_here(model.as_deref().unwrap_or_default(), &[]).into_response()
        }
    }
}

/// For the operator: the same with how far it is, who is there, what is being done and why something failed. It
/// names workers.
pub(super) async fn health_with_reasons(State(fleet): State<Fleet>) -> Response {
    let of = |app: &App| {
        let (word, mut body) = state(app);
        body["workers"] = workers(&app.roll.borrow());
        (word, body)
    };
    if let Some(member) = fleet.only() {
        let (word, body) = of(&member.now());
        return answer(word, body);
    }
    let mut models = Map::new();
    let mut up = None;
    for member in fleet.all().iter() {
        let app = member.now();
        let (word, mut body) = of(&app);
        let word = if member.takes() { UP } else { word };
        body["status"] = json!(member.word().filter(|_| member.takes()).unwrap_or(word));
        models.insert(app.text.name().to_owned(), body);
        up = up.filter(|up| *up == UP).or(Some(word));
    }
    answer(up.unwrap_or(UP), json!({ "models": models }))
}

const UP: &str = "ok";

/// What the server is doing, in a word and in full.
fn state(app: &App) -> (&'static str, Value) {
    if app.door.draining.is_cancelled() {
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
pub(super) async fn metrics(State(fleet): State<Fleet>) -> impl IntoResponse {
    let door = fleet.door();
    // Histograms collect samples until somebody drains them.
    door.metrics.run_upkeep();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], door.metrics.render())
}

//! `GET /health` and `GET /metrics`. Everybody may see whether requests run. Operators also see the progress of
//! loading, the workers, and Prometheus's metrics.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use brigade_line::handle::Status;
use brigade_line::health::{Loading, Roll};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::fleet::{self, Fleet, Member, Presence};

/// `GET /health` for everybody: 200 while requests run, 503 otherwise, and one word.
pub(crate) async fn health(State(fleet): State<Fleet>, uri: Uri) -> Response {
    let model = fleet::of_query(&uri);
    let asked = |app: &App| model.as_deref().is_none_or(|model| app.text.serves(model));
    // Up is who would take a request, and load the model for it.
    let health = |member: &Member| {
        let app = member.now();
        let takes = member.takes() && !fleet.is_draining();
        let health = if takes { Health::Up } else { state(&app).0 };
        asked(&app).then_some(health)
    };
    // What only some keys know of is told to nobody without a key.
    let members = fleet.all();
    let known = members.iter().filter(|member| member.is_for_all());
    let all: Vec<Health> = known.filter_map(health).collect();
    match all.iter().find(|health| **health == Health::Up).or(all.first()) {
        Some(health) => answer(*health, json!({})),
        None if model.is_none() && fleet.grows() => {
            let is_draining = fleet.is_draining();
            answer(if is_draining { Health::Stopping } else { Health::Up }, json!({}))
        }
        None => crate::request::model_name::not_here(model.as_deref().unwrap_or_default(), &[])
            .into_response(),
    }
}

/// `GET /health` for the operator, with the progress, the workers, and the reasons of failures. It names workers.
pub(crate) async fn health_with_reasons(State(fleet): State<Fleet>) -> Response {
    let of = |app: &App| {
        let (health, mut body) = state(app);
        body["workers"] = workers(&app.roll.borrow());
        (health, body)
    };
    if let Some(member) = fleet.only() {
        let (health, body) = of(&member.now());
        return answer(health, body);
    }
    let mut models = Map::new();
    let mut up = None;
    for member in fleet.all().iter() {
        let app = member.now();
        let (health, mut body) = of(&app);
        let health = if member.takes() { Health::Up } else { health };
        let presence = member.presence().filter(|_| member.takes());
        body["status"] = json!(presence.map_or(health.word(), Presence::word));
        models.insert(app.text.name().to_owned(), body);
        up = up.filter(|up| *up == Health::Up).or(Some(health));
    }
    answer(up.unwrap_or(Health::Up), json!({ "models": models }))
}

/// Whether requests run, or why they do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Up,
    Loading,
    Down,
    Stopping,
    Failed,
}

impl Health {
    fn word(self) -> &'static str {
        match self {
            Self::Up => "ok",
            Self::Loading => "loading",
            Self::Down => "down",
            Self::Stopping => "stopping",
            Self::Failed => "failed",
        }
    }
}

/// The server's health, with more fields about it.
fn state(app: &App) -> (Health, Value) {
    if app.door.draining.is_cancelled() {
        return (Health::Stopping, json!({}));
    }
    match app.engine.status() {
        Status::Ready(_) => (Health::Up, json!({})),
        Status::Loading(loading) => {
            let mut body = json!({ "what": loading.what });
            progress(&mut body, &loading);
            (Health::Loading, body)
        }
        Status::Down { reason, next } => {
            let mut body = json!({ "reason": reason });
            progress(&mut body, &next.unwrap_or_default());
            (Health::Down, body)
        }
        Status::Stopping => (Health::Stopping, json!({})),
        Status::Failed { reason } => (Health::Failed, json!({ "reason": reason })),
    }
}

fn answer(health: Health, mut body: Value) -> Response {
    body["status"] = json!(health.word());
    let status = match health {
        Health::Up => StatusCode::OK,
        Health::Loading | Health::Down | Health::Stopping | Health::Failed => {
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
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

/// Handles `GET /metrics`, in Prometheus's text format.
pub(crate) async fn metrics(State(fleet): State<Fleet>) -> impl IntoResponse {
    let door = fleet.door();
    // Histograms collect samples until they are drained.
    door.metrics.run_upkeep();
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], door.metrics.render())
}

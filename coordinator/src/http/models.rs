//! `GET /v1/models`: the one model that is served.

use axum::Json;
use axum::extract::{Path, State};

use super::App;
use super::error::ApiError;
use super::types::{ModelList, ModelObject};

fn object(app: &App) -> ModelObject {
    ModelObject {
        id: app.text.name().to_string(),
        object: "model",
        created: app.created,
        owned_by: "brigade",
        meta: (*app.meta).clone(),
    }
}

/// The list.
pub(super) async fn list(State(app): State<App>) -> Json<ModelList> {
    Json(ModelList { object: "list", data: vec![object(&app)] })
}

/// One model by name.
pub(super) async fn one(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<ModelObject>, ApiError> {
    if id != app.text.name() {
        let name = app.text.name();
        return Err(ApiError::not_found(format!("the model {id:?} is not served here: {name} is")));
    }
    Ok(Json(object(&app)))
}

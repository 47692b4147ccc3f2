//! `GET /v1/models`: the one model that is served, under all of its names.

use axum::Json;
use axum::extract::{Path, State};
use brigade_dialect::text_model::TextModel;
use brigade_line::model::ModelMeta;

use super::app::App;
use super::error::ApiError;
use super::types::{ModelList, ModelObject};

/// Refuses a name under which the model is not served; a request without one means the model that is.
///
/// # Errors
/// 404, with the names there are.
pub fn check_name(text: &TextModel, name: Option<&str>) -> Result<(), ApiError> {
    match name {
        Some(name) if !name.is_empty() && !text.serves(name) => {
            let names = text.names().join(", ");
            let mut error = ApiError::not_found(format!(
                "the model {name:?} is not served here: {names} is; serve has --served-model-name for others"
            ));
            error.set_code("model_not_found");
            Err(error)
        }
        _ => Ok(()),
    }
}

fn object(app: &App, name: &str) -> ModelObject {
    ModelObject {
        id: name.to_string(),
        object: "model",
        created: app.created,
        owned_by: "brigade",
        context_length: app.limits.now().n_ctx,
        max_model_len: app.limits.now().n_ctx,
        meta: ModelMeta { n_ctx: app.limits.now().n_ctx, ..(*app.meta).clone() },
    }
}

/// The list.
pub(super) async fn list(State(app): State<App>) -> Json<ModelList> {
    let data = app.text.names().iter().map(|name| object(&app, name)).collect();
    Json(ModelList { object: "list", data, models: [] })
}

/// One model by name.
pub(super) async fn one(
    State(app): State<App>,
    Path(id): Path<String>,
) -> Result<Json<ModelObject>, ApiError> {
    check_name(&app.text, Some(&id))?;
    Ok(Json(object(&app, &id)))
}

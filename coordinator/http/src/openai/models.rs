//! `GET /v1/models`: the models that are served, each under all of its names.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use brigade_line::model::ModelMeta;

use crate::answer::types::{ModelList, ModelObject, ModelStatus};
use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::fleet::{Fleet, Member, Presence};

/// Where the list is, and each model below it.
pub(crate) const PATH: &str = "/v1/models";

fn object(app: &App, word: Option<&'static str>, name: &str) -> ModelObject {
    ModelObject {
        id: name.to_string(),
        object: "model",
        created: app.created,
        owned_by: "brigade",
        context_length: app.limits.now().n_ctx,
        max_model_len: app.limits.now().n_ctx,
        status: word.map(|value| ModelStatus { value }),
        meta: ModelMeta { n_ctx: app.limits.now().n_ctx, ..(*app.meta).clone() },
    }
}

/// Handles `GET /v1/models`: the models that the request's key may use.
pub(crate) async fn list(
    State(fleet): State<Fleet>,
    Extension(asks): Extension<Name>,
) -> Json<ModelList> {
    fleet.refresh().await;
    let of = |member: &Member| {
        let (app, word) = (member.now(), member.presence().map(Presence::word));
        app.names().map(|name| object(&app, word, name)).collect::<Vec<_>>()
    };
    Json(ModelList {
        object: "list",
        data: fleet.usable(&asks).iter().flat_map(of).collect(),
        models: [],
    })
}

/// Handles `GET /v1/models/{id}`: one model by name, whose slashes may stand as they are.
pub(crate) async fn one(
    State(fleet): State<Fleet>,
    Extension(asks): Extension<Name>,
    Path(id): Path<String>,
) -> Result<Json<ModelObject>, ApiError> {
    let member = fleet.meant(Some(&id), &asks).await?;
    Ok(Json(object(&member.now(), member.presence().map(Presence::word), &id)))
}

//! The models behind one door, and which of them a request means.
//!
//! A request names its model in its body, or, where it has none, in its address (`?model=`). Whoever names none means the
//! first model that its key may use. A key is checked against the model that came of it, whatever it was called.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use thiserror::Error;

use super::app::{App, Door};
use super::body::{FREE_BODY_BYTES, Taken};
use super::error::ApiError;
use super::fields::Fields;
use super::name::Name;

/// Below it are the addresses of an API where a model may also be called by `name`.
const OLLAMA: &str = "/api/";

/// Why models cannot stand behind one door.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FleetError {
    /// There is none.
    #[error("a server needs a model: name one with --model")]
    Empty,
    /// A name means one model.
    #[error("two models are called {0:?}: give one of them another name")]
    Twice(String),
}

/// Models by their names; clones share them.
#[derive(Clone, Debug)]
pub struct Fleet {
    apps: Arc<[App]>,
    door: Door,
}

impl Fleet {
    /// One model alone.
    pub fn of_one(app: App) -> Self {
        Self { door: app.door.clone(), apps: Arc::from([app]) }
    }

    /// Several models, each of which has the same door. The first one is meant where a request names none.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn new(apps: Vec<App>) -> Result<Self, FleetError> {
        let door = apps.first().ok_or(FleetError::Empty)?.door.clone();
        for (at, app) in apps.iter().enumerate() {
            let is_taken = |name: &&String| apps[..at].iter().any(|other| is_called(other, name));
            if let Some(name) = app.text.names().iter().find(is_taken) {
                return Err(FleetError::Twice(name.clone()));
            }
        }
        Ok(Self { apps: apps.into(), door })
    }

    /// What all models have in common.
    pub(super) fn door(&self) -> &Door {
        &self.door
    }

    /// All models.
    pub(super) fn all(&self) -> &[App] {
        &self.apps
    }

    /// The model, if there is but one.
    pub(super) fn only(&self) -> Option<&App> {
        match &*self.apps {
            [app] => Some(app),
            _ => None,
        }
    }

    /// The models that whoever asks may use.
    pub(super) fn usable<'a>(&'a self, name: &Name) -> impl Iterator<Item = &'a App> {
        self.apps.iter().filter(|app| name.tally.may_use(app.text.name()))
    }

    /// The model that a request calls by `model`; `None`: it names none.
    ///
    /// # Errors
    /// It is not here, or the request's key may not use it.
    pub(super) fn meant(&self, model: Option<&str>, name: &Name) -> Result<&App, ApiError> {
        let Some(model) = model.filter(|model| !model.is_empty()) else {
            return self.usable(name).next().ok_or_else(|| forbidden(self.apps[0].text.name()));
        };
        // A model that takes any name comes behind those that have it.
        let exact = self.apps.iter().find(|app| is_called(app, model));
        let app = exact.or_else(|| self.apps.iter().find(|app| app.text.serves(model)));
        let app = app.ok_or_else(|| self.not_here(model, name))?;
        match name.tally.may_use(app.text.name()) {
            true => Ok(app),
            false => Err(forbidden(app.text.name())),
        }
    }

    fn not_here(&self, model: &str, name: &Name) -> ApiError {
        let names = self.usable(name).flat_map(|app| app.text.names().to_vec());
        super::model_name::not_here(model, &names.collect::<Vec<_>>())
    }

    /// Chooses the model of a request, and takes its body where the model is named there. What its handler finds: an
    /// [`App`], and the body at the place where bodies are taken from.
    ///
    /// # Errors
    /// As [`Fleet::meant`]; the body is not there.
    pub(super) async fn choose(
        &self,
        name: &Name,
        mut request: Request,
    ) -> Result<(App, Request), ApiError> {
        if let Some(app) = self.only() {
            // Its handler reads whether the request calls it so. Looking around is free.
            return match request.method() != Method::POST || name.tally.may_use(app.text.name()) {
                true => Ok((app.clone(), request)),
                false => Err(forbidden(app.text.name())),
            };
        }
        if request.method() != Method::POST {
            let model = of_query(request.uri());
            return Ok((self.meant(model.as_deref(), name)?.clone(), request));
        }
        let with_name = request.uri().path().starts_with(OLLAMA);
        let (parts, body) = request.into_parts();
        let body = self.door.bodies.take(Request::from_parts(parts.clone(), body)).await?;
        let (model, body) = named_in(body, with_name).await?;
        let app = self.meant(model.as_deref(), name)?.clone();
        request = Request::from_parts(parts, axum::body::Body::empty());
        body.wait_in(&mut request);
        Ok((app, request))
    }
}

fn is_called(app: &App, name: &str) -> bool {
    app.text.names().iter().any(|known| known == name)
}

fn forbidden(model: &str) -> ApiError {
    let message = format!("the API key may not use the model {model}");
    ApiError::forbidden("model_not_allowed", message)
}

/// The value of `model` in an address.
pub(super) fn of_query(uri: &Uri) -> Option<String> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.filter(|(key, _)| *key == "model").map(|(_, value)| value).next()?;
    percent_encoding::percent_decode_str(value).decode_utf8().ok().map(Into::into)
}

/// The model that a body names. A body that cannot be read names none: its handler says what is wrong with it.
async fn named_in(body: Taken, with_name: bool) -> Result<(Option<String>, Taken), ApiError> {
    let read = move |body: Taken| {
        let names: &[&str] = if with_name { &["model", "name"] } else { &["model"] };
        let fields = Fields::parse(&body.bytes);
        let model = fields.and_then(|mut fields| fields.take_any::<String>(names));
        (model.ok().flatten(), body)
    };
    if body.bytes.len() <= FREE_BODY_BYTES {
        return Ok(read(body));
    }
    let read = tokio::task::spawn_blocking(move || read(body)).await;
    read.map_err(|error| {
        tracing::error!(%error, "reading a request's model failed");
        ApiError::server("an internal error; the server's log says more")
    })
}

/// The model that a request means.
#[derive(Clone, Debug)]
pub(super) struct Meant(pub(super) App);

impl FromRequestParts<Fleet> for Meant {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, fleet: &Fleet) -> Result<Self, Infallible> {
        // The guard has put it there.
        let chosen = parts.extensions.get::<Self>().cloned();
        Ok(chosen.unwrap_or_else(|| Self(fleet.apps[0].clone())))
    }
}

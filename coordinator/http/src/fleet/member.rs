//! One of the models behind the door: it is there, is loaded when it is needed, or is fetched first.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use brigade_line::handle::Status;
use brigade_line::health::Loading;
use brigade_line::keys::{Force, KeyEnd};
use tokio::time::Instant;

use crate::app::App;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::request::keep_alive::Keep;

/// How often it is looked whether the key of a request that waits is still in force.
const KEY_LOOK_EVERY: Duration = Duration::from_millis(500);

/// Why a model cannot be used now.
#[derive(Clone, Debug, PartialEq)]
pub enum NotLoaded {
    /// The model is being loaded; its progress.
    NotYet(Loading),
    /// All that would have to make room for it is in use.
    NoRoom,
    /// The model is being fetched from where it is; its progress.
    Fetching(Loading),
    /// There is no such model to fetch; the reason is for clients.
    Missing(String),
    /// The model can never be had here; the reason is for clients, and says what would help.
    Refused(String),
    /// The model cannot be loaded here; the reason is for operators.
    Never(String),
}

/// Resolves to the model with its line, or to the reason why it is not loaded.
pub type Coming<'a> = Pin<Box<dyn Future<Output = Result<App, NotLoaded>> + Send + 'a>>;

/// A request's wish for a model, and its patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// The number of the request's key; `None`: it needed none.
    pub key: Option<u64>,
    /// How long it waits.
    pub within: Duration,
}

/// Loads a model when a request needs it.
pub trait Loader: Debug + Send + Sync {
    /// The model with its line that is up; waits for that as long as the wish says.
    fn loaded(&self, wish: Wish) -> Coming<'_>;

    /// The model with its line, if it is loaded or being loaded.
    fn now(&self) -> Option<App>;

    /// Sets how long the model stays loaded after its last use, as a client with this key wishes. `None`: as long as
    /// the options say.
    fn keep(&self, _key: Option<u64>, _keep: Option<Duration>) {}
}

/// Resolves to a model that is on this machine, or to the reason why it is not.
pub type Fetched<'a> = Pin<Box<dyn Future<Output = Result<Member, NotLoaded>> + Send + 'a>>;

/// A model that is not on this machine, and may be fetched.
pub trait Fetch: Debug + Send + Sync {
    /// Its name, as far as it is known before.
    fn name(&self) -> &str;

    /// The model, when it is here; waits for that as long as the wish says. When no key is in force any more that has
    /// wished for it, it is not fetched on.
    fn fetched(&self, wish: Wish, key: Force) -> Fetched<'_>;

    /// The model, if it is here.
    fn here(&self) -> Option<Member>;

    /// How far it is.
    fn how_far(&self) -> Loading;
}

/// Has models fetched that keys may load.
pub trait Fetcher: Debug + Send + Sync {
    /// The model that a request calls `name`, if such names may be fetched.
    fn open(&self, name: &str) -> Option<Arc<dyn Fetch>>;

    /// Models that are here.
    fn members(&self) -> Vec<Member>;
}

/// One of the models.
#[derive(Clone, Debug)]
pub struct Member {
    /// Of a model that is not loaded: without a line.
    app: App,
    loader: Option<Arc<dyn Loader>>,
    /// Whether only keys that may load models know of it.
    for_loaders: bool,
}

/// The state of a model that is loaded on demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    Unloaded,
    Loading,
    Loaded,
}

impl Presence {
    /// llama.cpp's word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Unloaded => "unloaded",
            Self::Loading => "loading",
            Self::Loaded => "loaded",
        }
    }
}

impl Member {
    /// A model that is always there.
    pub fn fixed(app: App) -> Self {
        Self { app, loader: None, for_loaders: false }
    }

    /// A model that is loaded when it is needed; until then it is `app`, whose line takes nothing.
    pub fn on_demand(app: App, loader: Arc<dyn Loader>) -> Self {
        Self { app, loader: Some(loader), for_loaders: false }
    }

    /// The same, and only keys that may load models know of it.
    pub fn for_loaders(self) -> Self {
        Self { for_loaders: true, ..self }
    }

    /// Whether the request's key knows of it.
    pub(crate) fn is_known_to(&self, name: &Name) -> bool {
        !self.for_loaders
            || (name.usage.may_load() && self.app.names().any(|own| name.usage.may_use(own)))
    }

    /// Whether the request's key may use it.
    pub(crate) fn is_usable_by(&self, name: &Name) -> bool {
        if self.for_loaders { self.is_known_to(name) } else { name.usage.may_use(self.name()) }
    }

    /// Whether all clients know of it.
    pub(crate) fn is_for_all(&self) -> bool {
        !self.for_loaders
    }

    /// Whether it is always there.
    pub(crate) fn is_fixed(&self) -> bool {
        self.loader.is_none()
    }

    /// The model without its line, if it has one.
    pub(crate) fn app(&self) -> &App {
        &self.app
    }

    /// The model as it is now.
    pub(crate) fn now(&self) -> App {
        let loaded = self.loader.as_ref().and_then(|loader| loader.now());
        loaded.unwrap_or_else(|| self.app.clone())
    }

    /// Whether the model is loaded. `None` for a model that is always there.
    pub(crate) fn presence(&self) -> Option<Presence> {
        let now = self.loader.as_ref()?.now();
        Some(match now.map(|app| app.engine.status()) {
            None => Presence::Unloaded,
            Some(Status::Ready(_)) => Presence::Loaded,
            Some(_) => Presence::Loading,
        })
    }

    /// Whether a request that needs its line would be taken.
    pub(crate) fn takes(&self) -> bool {
        self.presence() == Some(Presence::Unloaded)
    }

    /// What answers call it.
    pub(crate) fn name(&self) -> &str {
        self.app.text.name()
    }

    /// How far its line is; `None`: it has none.
    pub(crate) fn loading(&self) -> Option<Status> {
        match &self.loader {
            None => Some(self.app.engine.status()),
            Some(loader) => loader.now().map(|app| app.engine.status()),
        }
    }

    /// Notes a client's wish: how long the model stays loaded when it is idle.
    pub(crate) fn keep(&self, key: Option<u64>, keep: Keep) {
        if let Some(loader) = &self.loader {
            let keep = match keep {
                Keep::Stay => None,
                Keep::For(time) => Some(time),
            };
            loader.keep(key, keep);
        }
    }

    /// The model for a request at `path`.
    pub(crate) async fn for_request(
        &self,
        method: &Method,
        path: &str,
        wish: Wish,
    ) -> Result<App, ApiError> {
        let Some(loader) = &self.loader else { return Ok(self.app.clone()) };
        if method != Method::POST || OF_TEXT_ALONE.contains(&path) {
            return Ok(self.now());
        }
        loader.loaded(wish).await.map_err(|error| error.told(self.name()))
    }
}

impl NotLoaded {
    /// What a client is told.
    fn told(self, model: &str) -> ApiError {
        match self {
            Self::NotYet(loading) => ApiError::loading(model, &loading),
            Self::Fetching(loading) => ApiError::fetching(model, &loading),
            Self::NoRoom => ApiError::unavailable(format!(
                "there is no room for the model {model}: others are in use, were loaded just now, or are being fetched; try again later"
            )),
            Self::Missing(why) => {
                let mut error = ApiError::not_found(why);
                error.set_code("model_not_found");
                error
            }
            Self::Refused(why) => ApiError::field("model", why),
            Self::Never(reason) => {
                tracing::error!(model, reason, "a model cannot be loaded");
                ApiError::unavailable(format!(
                    "the model {model} cannot be loaded; the server's log says why"
                ))
            }
        }
    }
}

/// The model that a request means.
#[derive(Clone, Debug)]
pub(crate) enum Chosen {
    /// It is one of the server's.
    Here(Box<Member>),
    /// It is to be fetched.
    Away(Arc<dyn Fetch>),
}

impl Chosen {
    /// The model, if it is on this machine.
    pub(crate) fn here(&self) -> Option<Member> {
        match self {
            Self::Here(member) => Some((**member).clone()),
            Self::Away(away) => away.here(),
        }
    }

    /// The model for a request at `path`, whose key is `force`.
    pub(crate) async fn for_request(
        &self,
        method: &Method,
        path: &str,
        wish: Wish,
        force: Force,
    ) -> Result<App, ApiError> {
        let needed = async {
            let away = match self {
                Self::Here(member) => return member.for_request(method, path, wish).await,
                Self::Away(away) => away,
            };
            let until = Instant::now() + wish.within;
            let fetched = away.fetched(wish, force.clone()).await;
            let member = fetched.map_err(|error| error.told(away.name()))?;
            let within = until.saturating_duration_since(Instant::now());
            member.for_request(method, path, Wish { within, ..wish }).await
        };
        let over =
            |end: KeyEnd| ApiError::unauthorized(format!("the API key {end}: ask for another one"));
        tokio::select! {
            // What a key waits for may end because the key does.
            app = needed => app.map_err(|error| force.end().map_or(error, over)),
            end = ended(&force) => Err(over(end)),
        }
    }
}

/// Waits for the end of a key.
async fn ended(force: &Force) -> KeyEnd {
    loop {
        if let Some(end) = force.end() {
            return end;
        }
        tokio::time::sleep(KEY_LOOK_EVERY).await;
    }
}

/// Addresses that need a model's line. Only for these a model is fetched.
pub(crate) const NEED_A_LINE: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/rerank",
    "/v1/reranking",
    "/reranking",
    "/completion",
    "/completions",
    "/infill",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
];

/// Addresses that need a model's text side only.
pub(crate) const OF_TEXT_ALONE: &[&str] = &[
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v1/messages/count_tokens",
    "/api/show",
    "/api/pull",
    "/api/create",
];

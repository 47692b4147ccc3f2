//! The models behind one door, and which of them a request means.
//!
//! A request names its model in its body, or, where it has none, in its address (`?model=`). Where a request names
//! none, it gets the first model that its key may use. A key's permission is checked against the chosen model, not
//! against the name in the request.
//!
//! A model that is not loaded has a [`Loader`]. Until then there is its text side: its tokenizer, its template, its facts.

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use brigade_line::admin::Admin;
use brigade_line::handle::Status;
use brigade_line::health::Loading;
use thiserror::Error;

use crate::app::{App, Door};
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::request::bodies::{FREE_BODY_BYTES, Taken};
use crate::request::fields::Fields;
use crate::request::keep_alive::{Keep, keep_alive};

/// The prefix of an API in which a model may also be called by `name`.
const OLLAMA: &str = "/api/";

/// Why models cannot stand behind one door.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum FleetError {
    /// There is no model.
    #[error("a server needs a model: name one with --model")]
    Empty,
    /// A name means one model.
    #[error("two models are called {0:?}: give one of them another name")]
    Twice(String),
}

/// Why a model cannot be used now.
#[derive(Clone, Debug, PartialEq)]
pub enum NotLoaded {
    /// The model is being loaded; its progress.
    NotYet(Loading),
    /// All that would have to make room for it is in use.
    NoRoom,
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

/// Resolves to the models that there are now, or to `None` where nothing has changed.
pub type Looking<'a> = Pin<Box<dyn Future<Output = Option<Vec<Member>>> + Send + 'a>>;

/// Where models come from while the server runs.
pub trait Source: Debug + Send + Sync {
    /// All of its models, if they have changed since the last call.
    fn look(&self) -> Looking<'_>;

    /// Whether the model called so is there, and cannot be used.
    fn is_damaged(&self, name: &str) -> bool;
}

/// One of the models.
#[derive(Clone, Debug)]
pub struct Member {
    /// What handlers know of the model; without a line while the model is not loaded.
    app: App,
    loader: Option<Arc<dyn Loader>>,
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
        Self { app, loader: None }
    }

    /// A model that is loaded when it is needed; until then it is `app`, whose line takes nothing.
    pub fn on_demand(app: App, loader: Arc<dyn Loader>) -> Self {
        Self { app, loader: Some(loader) }
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

    fn name(&self) -> &str {
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
        loader.loaded(wish).await.map_err(|error| match error {
            NotLoaded::NotYet(loading) => ApiError::loading(self.name(), &loading),
            NotLoaded::NoRoom => ApiError::unavailable(format!(
                "there is no room for the model {}: the models that are loaded are in use; try again later",
                self.name()
            )),
            NotLoaded::Never(reason) => {
                tracing::error!(model = self.name(), reason, "a model cannot be loaded");
                ApiError::unavailable(format!(
                    "the model {} cannot be loaded; the server's log says why",
                    self.name()
                ))
            }
        })
    }
}

/// Addresses that need a model's text side only.
const OF_TEXT_ALONE: &[&str] = &[
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/v1/messages/count_tokens",
    "/api/show",
    "/api/pull",
    "/api/create",
];

/// Models by their names; clones share them.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// Models that are there for as long as the server runs.
    fixed: Arc<[Member]>,
    /// All models, those of the source included.
    members: Arc<RwLock<Arc<[Member]>>>,
    source: Option<Arc<dyn Source>>,
    door: Door,
    /// Answers operators about all models together.
    operators: Option<Admin>,
}

impl Fleet {
    /// A fleet of one model.
    pub fn of_one(app: App) -> Self {
        Self::of(app.door.clone(), vec![Member::fixed(app)])
    }

    fn of(door: Door, members: Vec<Member>) -> Self {
        let fixed: Arc<[Member]> = members.into();
        let members = Arc::new(RwLock::new(fixed.clone()));
        Self { fixed, members, source: None, door, operators: None }
    }

    /// Several models behind the same door. The first one is the default of requests that name none.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn new(members: Vec<Member>) -> Result<Self, FleetError> {
        let door = members.first().ok_or(FleetError::Empty)?.app.door.clone();
        for (at, member) in members.iter().enumerate() {
            if let Some(name) = taken_name(member, &members[..at]) {
                return Err(FleetError::Twice(name.to_owned()));
            }
        }
        Ok(Self::of(door, members))
    }

    /// Models of which more come while the server runs; `found` are there now. There may be none.
    ///
    /// # Errors
    /// Two of `members` have one name.
    pub fn with_source(
        door: Door,
        members: Vec<Member>,
        source: Arc<dyn Source>,
        found: Vec<Member>,
    ) -> Result<Self, FleetError> {
        let fleet = if members.is_empty() { Self::of(door, members) } else { Self::new(members)? };
        fleet.join(found);
        Ok(Self { source: Some(source), ..fleet })
    }

    /// Takes over the source's present models. Where two have one name, the first one keeps it.
    fn join(&self, found: Vec<Member>) {
        let mut all = self.fixed.to_vec();
        for member in found {
            match taken_name(&member, &all) {
                None => all.push(member),
                Some(name) => {
                    tracing::warn!(
                        name,
                        "a model of --models-dir is left out: another one has its name, so rename one of them"
                    );
                }
            }
        }
        *self.members.write().unwrap_or_else(PoisonError::into_inner) = all.into();
    }

    /// Looks whether there are others now.
    pub(crate) async fn refresh(&self) {
        if let Some(source) = &self.source
            && let Some(found) = source.look().await
        {
            self.join(found);
        }
    }

    /// The same, where `operators` answers about all models together.
    pub fn with_operators(self, operators: Admin) -> Self {
        Self { operators: Some(operators), ..self }
    }

    /// Whether the server takes nothing new.
    pub(crate) fn is_draining(&self) -> bool {
        self.door.draining.is_cancelled()
    }

    /// The state that all models share.
    pub(crate) fn door(&self) -> &Door {
        &self.door
    }

    /// A snapshot of all models.
    pub(crate) fn all(&self) -> Arc<[Member]> {
        // It is changed as a whole.
        self.members.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The model, if there is but one, for good.
    pub(crate) fn only(&self) -> Option<Member> {
        match (&*self.all(), &self.source) {
            ([member], None) => Some(member.clone()),
            _ => None,
        }
    }

    /// The name of the only model; `None`: there are several.
    pub(crate) fn only_name(&self) -> Option<String> {
        self.only().map(|member| member.name().to_owned())
    }

    /// The models that the request's key may use.
    pub(crate) fn usable(&self, name: &Name) -> Vec<Member> {
        let may_use = |member: &&Member| name.usage.may_use(member.name());
        self.all().iter().filter(may_use).cloned().collect()
    }

    /// The model that a request calls by `model`; `None`: it names none.
    ///
    /// # Errors
    /// The model is not here, or the request's key may not use it.
    pub(crate) async fn meant(&self, model: Option<&str>, name: &Name) -> Result<Member, ApiError> {
        let Some(model) = model.filter(|model| !model.is_empty()) else {
            return self.usable(name).into_iter().next().ok_or_else(|| match self.all().first() {
                Some(first) => forbidden(first.name()),
                None => ApiError::not_found("there is no model here yet"),
            });
        };
        let member = match find(&self.all(), model) {
            Some(member) => member,
            None => {
                self.refresh().await;
                find(&self.all(), model).ok_or_else(|| self.not_here(model, name))?
            }
        };
        if name.usage.may_use(member.name()) { Ok(member) } else { Err(forbidden(member.name())) }
    }

    /// The operators' interface of the line of the model called `model`, or of the only one.
    ///
    /// # Errors
    /// There are several, none is called so, or it is not loaded.
    pub(crate) fn for_operators(&self, model: Option<&str>) -> Result<Admin, ApiError> {
        if let Some(operators) = self.operators.clone().filter(|_| model.is_none()) {
            return Ok(operators);
        }
        let all = self.all();
        let is_it = |member: &&Member| model.is_some_and(|model| is_called(&member.app, model));
        let only = self.only().filter(|_| model.is_none());
        let member = all.iter().find(is_it).or(only.as_ref()).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(Member::name).collect();
            let names = names.join(", ");
            ApiError::not_found(format!("say which model, as in ?model=NAME: there are {names}"))
        })?;
        if member.takes() {
            Err(ApiError::conflict(format!("{} is not loaded now", member.name())))
        } else {
            Ok(member.now().admin)
        }
    }

    fn not_here(&self, model: &str, name: &Name) -> ApiError {
        let is_damaged = self.source.as_ref().is_some_and(|source| source.is_damaged(model));
        if is_damaged && name.usage.may_use(model) {
            return ApiError::unavailable(format!(
                "the model {model} cannot be loaded: its file is damaged; the server's log says why"
            ));
        }
        let usable = self.usable(name).into_iter();
        let names = usable.flat_map(|member| member.app.text.names().to_vec());
        crate::request::model_name::not_here(model, &names.collect::<Vec<_>>())
    }

    /// Chooses the model of a request. The body is read here where it names the model, or says whether the client can
    /// be told that the model is being loaded. The handler finds an [`App`], and the body at the place where bodies
    /// are taken from.
    ///
    /// # Errors
    /// As [`Fleet::meant`]; or the body could not be read.
    pub(crate) async fn choose(
        &self,
        name: &Name,
        mut request: Request,
    ) -> Result<Choice, ApiError> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if let Some(member) = self.only()
            && (member.loader.is_none() || method != Method::POST)
        {
            // Its handler reads whether the request calls it so. Looking around is free.
            return if method != Method::POST || name.usage.may_use(member.name()) {
                Ok(Choice { request, member, head: Head::default() })
            } else {
                Err(forbidden(member.name()))
            };
        }
        if method != Method::POST {
            let model = of_query(request.uri());
            let member = self.meant(model.as_deref(), name).await?;
            return Ok(Choice { request, member, head: Head::default() });
        }
        let (parts, body) = request.into_parts();
        let body = self.door.bodies.take(Request::from_parts(parts.clone(), body)).await?;
        let (head, body) = head_of(body, path.starts_with(OLLAMA)).await?;
        request = Request::from_parts(parts, axum::body::Body::empty());
        body.wait_in(&mut request);
        let member = self.meant(head.model.as_deref(), name).await?;
        Ok(Choice { request, member, head })
    }
}

/// The model called so. One that takes any name comes behind those that have it.
fn find(all: &[Member], model: &str) -> Option<Member> {
    let has = |has: &dyn Fn(&App) -> bool| all.iter().find(|member| has(&member.app)).cloned();
    has(&|app| is_called(app, model)).or_else(|| has(&|app| app.text.serves(model)))
}

/// A name of a model that one of `others` has.
fn taken_name<'m>(member: &'m Member, others: &[Member]) -> Option<&'m str> {
    let is_taken = |name: &&str| others.iter().any(|other| is_called(&other.app, name));
    member.app.names().find(is_taken)
}

fn is_called(app: &App, name: &str) -> bool {
    app.text.names().iter().any(|known| known == name)
}

fn forbidden(model: &str) -> ApiError {
    let message = format!("the API key may not use the model {model}");
    ApiError::forbidden("model_not_allowed", message)
}

/// The value of `model` in an address.
pub(crate) fn of_query(uri: &Uri) -> Option<String> {
    let pairs = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.filter(|(key, _)| *key == "model").map(|(_, value)| value).next()?;
    percent_encoding::percent_decode_str(value).decode_utf8().ok().map(Into::into)
}

/// A request with the model that it means, which may not be loaded.
#[derive(Debug)]
pub(crate) struct Choice {
    /// The request, whose body the handler finds where bodies are taken from.
    pub request: Request,
    /// The chosen model, which may not be loaded.
    pub member: Member,
    /// Fields of the body that choosing and loading need.
    pub head: Head,
}

/// Fields that are read from a body before its handler reads it.
#[derive(Debug, Default)]
pub(crate) struct Head {
    /// The model that it names.
    model: Option<String>,
    /// Whether it asks for a stream.
    pub is_stream: bool,
    /// How long it wants the model to stay.
    pub keep: Option<Keep>,
    /// Whether it asks for nothing but that the model goes.
    pub only_unloads: bool,
}

/// Reads the model, `stream` and `keep_alive` of a body. An invalid body has none of them: its handler reports the
/// error.
async fn head_of(body: Taken, is_ollamas: bool) -> Result<(Head, Taken), ApiError> {
    let read = move |body: Taken| {
        let head = Fields::parse(&body.bytes).map(|fields| Head::read(fields, is_ollamas));
        Ok((head.unwrap_or_else(|_| Ok(Head::default()))?, body))
    };
    if body.bytes.len() <= FREE_BODY_BYTES {
        return read(body);
    }
    let read = tokio::task::spawn_blocking(move || read(body)).await;
    read.map_err(|error| {
        tracing::error!(%error, "reading a request's model failed");
        ApiError::server("an internal error; the server's log says more")
    })?
}

impl Head {
    fn read(mut fields: Fields<'_>, is_ollamas: bool) -> Result<Self, ApiError> {
        let names: &[&str] = if is_ollamas { &["model", "name"] } else { &["model"] };
        let mut head = Self {
            model: fields.take_any::<String>(names).ok().flatten(),
            is_stream: fields.take("stream").ok().flatten().unwrap_or(false),
            ..Self::default()
        };
        let keep = fields.raw("keep_alive").filter(|_| is_ollamas);
        head.keep = keep.map(keep_alive).transpose()?;
        if head.keep == Some(Keep::For(Duration::ZERO)) {
            let asks = ["prompt", "messages", "input"].into_iter();
            let mut asks = asks.filter_map(|name| fields.raw(name));
            head.only_unloads = asks.all(|value| matches!(&*value.json(), "\"\"" | "[]"));
        }
        Ok(head)
    }
}

/// The model that a request means.
#[derive(Clone, Debug)]
pub(crate) struct Meant(pub(crate) App);

impl FromRequestParts<Fleet> for Meant {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, fleet: &Fleet) -> Result<Self, ApiError> {
        // The guard has put it there.
        if let Some(chosen) = parts.extensions.get::<Self>() {
            return Ok(chosen.clone());
        }
        let first = fleet.all().first().map(|member| Self(member.now()));
        first.ok_or_else(|| ApiError::not_found("there is no model here yet"))
    }
}

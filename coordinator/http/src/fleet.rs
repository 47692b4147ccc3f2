//! The models behind one door, and which of them a request means.
//!
//! A request names its model in its body, or, where it has none, in its address (`?model=`). Where a request names
//! none, it gets the first model that its key may use. A key's permission is checked against the chosen model, not
//! against the name in the request.
//!
//! A model that is not loaded has a [`Loader`]. Until then there is its text side: its tokenizer, its template, its facts.
//! A model that is not on this machine has nothing yet: a [`Fetcher`] has it fetched for keys that may load models, and for
//! all other keys it does not exist.

pub(crate) mod member;

use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{Method, Uri};
use brigade_line::admin::Admin;
use thiserror::Error;

use crate::app::{App, Door};
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::request::bodies::{FREE_BODY_BYTES, Taken};
use crate::request::fields::Fields;
use crate::request::keep_alive::{Keep, keep_alive};

pub(crate) use member::{Chosen, NEED_A_LINE, Presence};
pub use member::{Coming, Fetch, Fetched, Fetcher, Loader, Member, NotLoaded, Wish};

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

/// Resolves to the models that there are now, or to `None` where nothing has changed.
pub type Looking<'a> = Pin<Box<dyn Future<Output = Option<Vec<Member>>> + Send + 'a>>;

/// Where models come from while the server runs.
pub trait Source: Debug + Send + Sync {
    /// All of its models, if they have changed since the last call.
    fn look(&self) -> Looking<'_>;

    /// Whether the model called so is there, and cannot be used.
    fn is_damaged(&self, name: &str) -> bool;
}

/// Models by their names; clones share them.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// Models that are there for as long as the server runs.
    fixed: Arc<[Member]>,
    /// All models, those of the source included.
    members: Arc<RwLock<Arc<[Member]>>>,
    source: Option<Arc<dyn Source>>,
    fetcher: Option<Arc<dyn Fetcher>>,
    door: Arc<Door>,
    /// Answers operators about all models together.
    operators: Option<Admin>,
}

impl Fleet {
    /// A fleet of one model.
    pub fn of_one(app: App) -> Self {
        Self::of(app.door.clone(), vec![Member::fixed(app)])
    }

    fn of(door: Arc<Door>, members: Vec<Member>) -> Self {
        let fixed: Arc<[Member]> = members.into();
        let members = Arc::new(RwLock::new(fixed.clone()));
        Self { fixed, members, source: None, fetcher: None, door, operators: None }
    }

    /// Several models behind the same door. The first one is the default of requests that name none.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn new(members: Vec<Member>) -> Result<Self, FleetError> {
        let door = members.first().ok_or(FleetError::Empty)?.app().door.clone();
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
        door: Arc<Door>,
        members: Vec<Member>,
        source: Arc<dyn Source>,
        found: Vec<Member>,
    ) -> Result<Self, FleetError> {
        let fleet = Self::growing(door, members)?;
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

    /// Models that are fetched when a request needs them, beside `members`, of which there may be none.
    ///
    /// # Errors
    /// Two of `members` have one name.
    pub fn growing(door: Arc<Door>, members: Vec<Member>) -> Result<Self, FleetError> {
        if members.is_empty() { Ok(Self::of(door, members)) } else { Self::new(members) }
    }

    /// The same with models that `fetcher` has fetched when a request needs them.
    pub fn with_fetcher(self, fetcher: Arc<dyn Fetcher>) -> Self {
        Self { fetcher: Some(fetcher), ..self }
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
    pub(crate) fn door(&self) -> &Arc<Door> {
        &self.door
    }

    /// A snapshot of all models.
    pub(crate) fn all(&self) -> Arc<[Member]> {
        // It is changed as a whole.
        let all = self.members.read().unwrap_or_else(PoisonError::into_inner).clone();
        match &self.fetcher {
            None => all,
            Some(fetcher) => all.iter().cloned().chain(fetcher.members()).collect(),
        }
    }

    /// Whether requests are taken for models that are not here yet.
    pub(crate) fn grows(&self) -> bool {
        self.fetcher.is_some()
    }

    /// The model, if there is but one, for good.
    pub(crate) fn only(&self) -> Option<Member> {
        match (&*self.all(), &self.source, &self.fetcher) {
            ([member], None, None) => Some(member.clone()),
            _ => None,
        }
    }

    /// The name of the only model; `None`: there are several.
    pub(crate) fn only_name(&self) -> Option<String> {
        self.only().map(|member| member.name().to_owned())
    }

    /// The models that the request's key may use.
    pub(crate) fn usable(&self, name: &Name) -> Vec<Member> {
        self.all().iter().filter(|member| member.is_usable_by(name)).cloned().collect()
    }

    /// The model that a request calls by `model`; `None`: it names none.
    ///
    /// # Errors
    /// The model is not here, or the request's key may not use it.
    pub(crate) async fn meant(&self, model: Option<&str>, name: &Name) -> Result<Member, ApiError> {
        let Some(model) = model.filter(|model| !model.is_empty()) else {
            // What others have fetched is nobody's default.
            let usable = self.usable(name).into_iter().find(Member::is_for_all);
            let all = self.all();
            let first = all.iter().find(|member| member.is_for_all());
            return usable.ok_or_else(|| match first {
                Some(first) => forbidden(first.name()),
                None if self.grows() => ApiError::not_found("say which model, in the field model"),
                None => ApiError::not_found("there is no model here yet"),
            });
        };
        let member = match self.known(model, name) {
            Some(member) => member,
            None => {
                self.refresh().await;
                self.known(model, name).ok_or_else(|| self.not_here(model, name))?
            }
        };
        if member.is_usable_by(name) { Ok(member) } else { Err(forbidden(member.name())) }
    }

    /// The model called so, as far as the request's key knows.
    fn known(&self, model: &str, name: &Name) -> Option<Member> {
        let known: Vec<Member> =
            self.all().iter().filter(|member| member.is_known_to(name)).cloned().collect();
        find(&known, model)
    }

    /// The model called so that would have to be fetched for a request at `path`.
    fn away(&self, model: Option<&str>, path: &str, name: &Name) -> Option<Arc<dyn Fetch>> {
        let fetcher = self.fetcher.as_ref().filter(|_| name.usage.may_load())?;
        let away = fetcher.open(model.filter(|_| NEED_A_LINE.contains(&path))?)?;
        name.usage.may_use(away.name()).then_some(away)
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
        let is_it = |member: &&Member| model.is_some_and(|model| is_called(member.app(), model));
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
        let names = usable.flat_map(|member| member.app().text.names().to_vec());
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
            && (member.is_fixed() || method != Method::POST)
        {
            // Its handler reads whether the request calls it so. Looking around is free.
            return if method != Method::POST || name.usage.may_use(member.name()) {
                Ok(Choice { request, model: Chosen::Here(Box::new(member)), head: Head::default() })
            } else {
                Err(forbidden(member.name()))
            };
        }
        if method != Method::POST {
            let model = of_query(request.uri());
            let member = self.meant(model.as_deref(), name).await?;
            return Ok(Choice {
                request,
                model: Chosen::Here(Box::new(member)),
                head: Head::default(),
            });
        }
        let (parts, body) = request.into_parts();
        let body = self.door.bodies.take(Request::from_parts(parts.clone(), body)).await?;
        let (head, body) = head_of(body, path.starts_with(OLLAMA)).await?;
        request = Request::from_parts(parts, axum::body::Body::empty());
        body.wait_in(&mut request);
        let model = match self.meant(head.model.as_deref(), name).await {
            Ok(member) => Chosen::Here(Box::new(member)),
            Err(error) if !head.only_unloads => {
                Chosen::Away(self.away(head.model.as_deref(), &path, name).ok_or(error)?)
            }
            Err(error) => return Err(error),
        };
        Ok(Choice { request, model, head })
    }
}

/// The model called so. One that takes any name comes behind those that have it.
fn find(all: &[Member], model: &str) -> Option<Member> {
    let has = |has: &dyn Fn(&App) -> bool| all.iter().find(|member| has(member.app())).cloned();
    has(&|app| is_called(app, model)).or_else(|| has(&|app| app.text.serves(model)))
}

/// A name of a model that one of `others` has.
fn taken_name<'m>(member: &'m Member, others: &[Member]) -> Option<&'m str> {
    let is_taken = |name: &&str| others.iter().any(|other| is_called(other.app(), name));
    member.app().names().find(is_taken)
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
    pub model: Chosen,
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

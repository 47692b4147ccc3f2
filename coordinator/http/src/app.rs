//! The state that handlers share: a model with its line, and the door that all models stand behind.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::extract::Request;
use brigade_dialect::text_model::TextModel;
use brigade_engine::heads::Heads;
use brigade_line::adapters::Adapters;
use brigade_line::admin::Admin;
use brigade_line::current::CurrentLimits;
use brigade_line::handle::Engine;
use brigade_line::health::{Roll, RollWatch};
use brigade_line::journal::{Journal, Opened};
use brigade_line::model::ModelMeta;
use brigade_line::request::{LEAST_ANSWER, Limits};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clients::access::Access;
use crate::clients::audit::Audit;
use crate::clients::concurrency::UnderWay;
use crate::clients::name::Name;
use crate::error::ApiError;
use crate::events::resumable::{Resumable, Streams};
use crate::request::bodies::Bodies;

/// Everything a handler needs of the model that it was asked for; clones share it.
#[derive(Clone, Debug)]
pub struct App {
    /// Submits sequences to the model's line.
    pub engine: Engine,
    /// Text to tokens and back.
    pub text: Arc<TextModel>,
    /// Classification heads that judge texts; empty where the model has none.
    pub heads: Arc<Heads>,
    /// Limits of prompts and answers. They change when the line is rebuilt.
    pub limits: CurrentLimits,
    /// LoRA adapters that requests may name.
    pub adapters: Arc<Adapters>,
    /// Sizes of the model, for `/v1/models`.
    pub meta: Arc<ModelMeta>,
    /// Seconds since the Unix epoch when the model was opened.
    pub created: u64,
    /// The workers that are connected, as they come and go.
    pub roll: RollWatch,
    /// Limit of sequences that run at once.
    pub max_seqs: u32,
    /// Whether anything is kept of prompts.
    pub keeps: bool,
    /// The journal in which its resumable streams are noted.
    pub journal: Option<Journal>,
    /// Answers operators about its line.
    pub admin: Admin,
    /// Reference count of the model's users: the model is not unloaded while a clone of this is alive.
    pub in_use: Arc<()>,
    /// State that all models of the server share.
    pub door: Arc<Door>,
}

/// State that all models of a server share. Each request hands it on several times, so it is shared as a whole; a clone
/// of its own shares it too.
#[derive(Clone, Debug)]
pub struct Door {
    /// Renders the text of `/metrics`.
    pub metrics: PrometheusHandle,
    /// Cancelled when the server takes nothing new.
    pub draining: CancellationToken,
    /// Counter from which sequences get their ids.
    pub sequences: Arc<AtomicU64>,
    /// Room for request bodies, and permits to read them.
    pub bodies: Bodies,
    /// The API keys, or free access.
    pub access: Access,
    /// The log of who asked.
    pub audit: Option<Audit>,
    /// Requests that are being answered.
    pub under_way: UnderWay,
    /// Streams that can be read on, also where their model was unloaded since.
    pub streams: Streams,
}

impl Door {
    /// A door for requests from within this process: without keys and without web pages.
    pub fn of_this_process(metrics: PrometheusHandle, draining: CancellationToken) -> Self {
        Self {
            metrics,
            draining,
            sequences: Arc::default(),
            bodies: Bodies::default(),
            access: Access::Open,
            audit: None,
            under_way: UnderWay::default(),
            streams: Streams::default(),
        }
    }
}

impl App {
    /// The place of a model of which nothing is known yet. It reads what does not depend on the model, and runs nothing.
    pub(crate) fn of_no_model(door: Arc<Door>) -> Self {
        let engine = Engine::not_loaded();
        let longest =
            Limits { n_ctx: u32::MAX, n_vocab: u32::MAX, answer: LEAST_ANSWER, encoder: None };
        let meta = ModelMeta {
            architecture: String::new(),
            n_ctx: longest.n_ctx,
            n_ctx_train: longest.n_ctx,
            n_vocab: longest.n_vocab,
            n_params: 0,
            size: 0,
            quantization: String::new(),
        };
        Self {
            limits: CurrentLimits::new(longest, engine.clone()),
            engine,
            text: Arc::new(TextModel::without_text()),
            heads: Arc::default(),
            adapters: Arc::default(),
            meta: Arc::new(meta),
            created: 0,
            roll: watch::channel(Roll::default()).1,
            max_seqs: 1,
            keeps: false,
            journal: None,
            admin: Admin::channel().0,
            in_use: Arc::default(),
            door,
        }
    }

    /// All names by which requests may name the model.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.text.names().iter().map(String::as_str)
    }

    /// Begins a stream that can be read on.
    ///
    /// # Errors
    /// As [`Streams::begin`].
    pub(crate) fn begin_stream(&self, opened: Opened, name: &Name) -> Result<Resumable, ApiError> {
        self.door.streams.begin(opened, name.tenant(), self.journal.as_ref())
    }

    /// The request's body, read by `work` ([`Bodies::read`]) within this model's limits.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        request: Request,
        work: impl FnOnce(&[u8], &Limits, &TextModel) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let (limits, text) = (self.limits.now(), self.text.clone());
        let bodies = &self.door.bodies;
        let body = bodies.take(request).await?;
        Ok(bodies.read(body, text, move |bytes, text| work(bytes, &limits, text)).await?.0)
    }
}

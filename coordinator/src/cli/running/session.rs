//! A session is a model with a line of workers behind it, as a command's arguments say.
//!
//! Every command that runs layers goes through [`with_session`]. It starts the workers, waits for the line,
//! runs the command and ends everything. So Ctrl-C, a failure and a normal end take the same way out, and
//! leave no process behind.

mod workers;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use brigade_cluster::{DEFAULT_REPLACE_AFTER, DEFAULT_SLOW_AFTER, OwnName, Patience};
use brigade_dialect::text_model::TemplateSource;
use brigade_engine::spec::Prefixes;
use brigade_line::admin::Admin;
use brigade_line::cache::Cache;
use brigade_line::current::CurrentLimits;
use brigade_line::driver::{self, DriverConfig, PrefixConfig};
use brigade_line::handle::{Engine, LineInfo, RequestId, Sequence, Status};
use brigade_line::health::RollWatch;
use brigade_line::keys::KeyRing;
use brigade_line::measured::meter::Meter;
use brigade_line::measured::metrics;
use brigade_line::model::Model;
use brigade_line::request::{LEAST_ANSWER, Limits, Request};
use brigade_line::stages::open_line::OpenLine;
use brigade_plan::{Checkpoint, Keep};
use brigade_proto::address::Address;
use brigade_sched::{
    DEFAULT_CHECKPOINT_EVERY, DEFAULT_MAX_WAITING, DEFAULT_REPAIR_WITHIN_US, SchedConfig,
};
use brigade_worker::prefixes::store::Sizes;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cli::options::args::{KvArg, LineArgs, ModelArgs};
use crate::cli::options::input;
use crate::cli::options::security::Security;
use crate::cli::options::speculate::Speculate;
use crate::cli::printing::progress;
use crate::cli::running::interrupt::{Interrupt, Interrupted};
pub use workers::{Joins, demand, source, worker_address};

/// Characters that tell one command's requests from another's.
const RUN_ID_CHARS: usize = 8;

/// Least number of slots where drafts are made for a model whose states exist at a sequence's end only. A stream that
/// runs ahead then keeps a state for each of its windows in the places of free slots.
const PLANES: u32 = 5;

/// How long the parts of the process may take to end.
const END_WITHIN: Duration = Duration::from_secs(5);

/// Everything a session is made of.
#[derive(Debug)]
pub struct SessionOptions {
    /// The model's arguments.
    pub model: ModelArgs,
    /// The arguments of the line and its workers.
    pub line: LineArgs,
    /// Positions of a sequence.
    pub ctx: Option<u32>,
    /// The type of KV cache values.
    pub kv_type: KvArg,
    /// Limit of sequences that run at once.
    pub max_seqs: u32,
    /// What is kept for later requests that begin alike; `None`: what suits the model.
    pub keep: Option<Keep>,
    /// Whether recurrent states are kept in the middle of prompts, too.
    pub marks: bool,
    /// How workers come by themselves; `None`: they do not.
    pub joins: Option<Joins>,
    /// The security between coordinator and workers; `None`: as the line's arguments say.
    pub security: Option<Security>,
    /// About workers that cannot be reached.
    pub patience: Patience,
    /// Requests that may wait.
    pub max_waiting: usize,
    /// How long requests wait for another line when theirs is lost.
    pub repair_within: Duration,
    /// Whether no other process sends requests, so that slots beyond the command's own are free.
    pub alone: bool,
    /// The drafter of next tokens.
    pub speculate: Speculate,
    /// Parts with drafts that a stream may have on the line at a time; `None`: as many as bring it forward.
    pub max_windows: Option<u32>,
    /// Where copies of states go, and after how many tokens recurrent ones are taken again.
    pub checkpoint: (Checkpoint, u32),
    /// Bytes that each other model of the server's fleet needs at least on a worker.
    pub others: Arc<[u64]>,
    /// How long a worker that was lost is waited for before the others go on without it.
    pub replace_after: Duration,
    /// Whether layers are cut anew for workers that joined or became slower, where that pays.
    pub rebalance: bool,
    /// How long a worker must be slower than planned to lose layers.
    pub slow_after: Duration,
    /// How its metrics call it, where there are others beside it.
    pub called: Option<String>,
    /// The id by which workers know the coordinator; `None`: a fresh one.
    pub own_name: Option<OwnName>,
    /// Settings for records of prefixes on the workers; `None`: no records.
    pub prefixes: Option<PrefixConfig>,
    /// The keys that requests show, if they do.
    pub keys: Option<KeyRing>,
    /// How much records of prefixes may take on each local worker.
    pub local_prefixes: Sizes,
    /// Where a trace of all ubatches goes at the end.
    pub trace: Option<PathBuf>,
    /// Instead of the model's own chat template: its source, or a name for it.
    pub chat_template: Option<TemplateSource>,
    /// Names under which the model is served instead of its own.
    pub served_names: Vec<String>,
}

impl SessionOptions {
    /// Options of a command that runs one thing and ends.
    pub fn command(model: &ModelArgs, line: &LineArgs, kv_type: KvArg) -> Self {
        Self {
            model: model.clone(),
            line: line.clone(),
            ctx: None,
            kv_type,
            max_seqs: 1,
            // Everything that a command measures or prints must be computed.
            keep: Some(Keep::NOTHING),
            marks: false,
            joins: None,
            security: None,
            patience: Patience::FailFast,
            max_waiting: DEFAULT_MAX_WAITING,
            repair_within: Duration::from_micros(DEFAULT_REPAIR_WITHIN_US),
            alone: true,
            speculate: Speculate::Off,
            max_windows: None,
            checkpoint: (Checkpoint::Off, DEFAULT_CHECKPOINT_EVERY),
            others: Arc::default(),
            replace_after: DEFAULT_REPLACE_AFTER,
            rebalance: false,
            slow_after: DEFAULT_SLOW_AFTER,
            prefixes: None,
            keys: None,
            local_prefixes: Sizes::default(),
            own_name: None,
            called: None,
            trace: None,
            chat_template: None,
            served_names: Vec::new(),
        }
    }
}

impl SessionOptions {
    /// Workers of a server log their actions; those of a command only problems, because the command prints the
    /// results.
    pub fn worker_log(&self) -> &'static str {
        match self.patience {
            Patience::Forever => "info",
            Patience::FailFast => "error",
        }
    }
}

/// A model with a line that runs.
#[derive(Debug)]
pub struct Session {
    /// The opened model.
    pub model: Arc<Model>,
    /// The handle for submitting requests.
    pub engine: Engine,
    /// The records of ubatches.
    pub meter: Arc<Meter>,
    /// The limits of requests.
    pub limits: CurrentLimits,
    /// Where workers may join.
    pub control: Option<Address>,
    /// The workers that are connected, as they come and go.
    pub roll: RollWatch,
    /// Takes an operator's questions and orders.
    pub admin: Admin,
    stop_driver: CancellationToken,
    stop_cluster: CancellationToken,
    /// Begins the names of this command's requests in logs.
    run: String,
    next_id: AtomicU64,
    driver: JoinHandle<Option<OpenLine>>,
    cluster: JoinHandle<()>,
    /// Made at the start, so that a bad path is known before anything runs.
    trace: Option<(PathBuf, File)>,
}

/// Opens the model, starts workers, waits for the line, runs `body`, and ends everything.
///
/// # Errors
/// The start's, the body's, or [`Interrupted`].
pub async fn with_session<T>(
    options: SessionOptions,
    body: impl AsyncFnOnce(&Session) -> Result<T>,
) -> Result<T> {
    with_session_until(options, CtrlC::Ends, body).await
}

/// The effect of SIGINT once the body runs. Before that it ends everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtrlC {
    /// SIGINT ends the session.
    Ends,
    /// The body handles SIGINT.
    OfTheBody,
}

/// The same as [`with_session`], with another effect of SIGINT.
///
/// # Errors
/// As [`with_session`].
pub async fn with_session_until<T>(
    options: SessionOptions,
    ctrl_c: CtrlC,
    body: impl AsyncFnOnce(&Session) -> Result<T>,
) -> Result<T> {
    let mut interrupt = Interrupt::listen()?;
    let session = Session::start(options).await?;
    let ready = tokio::select! {
        ready = session.ready() => ready.map(|_| ()),
        () = interrupt.received() => Err(Interrupted.into()),
    };
    if ctrl_c == CtrlC::OfTheBody {
        interrupt.leave_ctrl_c();
    }
    let result = match ready {
        Ok(()) => tokio::select! {
            result = body(&session) => result,
            () = interrupt.received() => Err(Interrupted.into()),
        },
        Err(error) => Err(error),
    };
    let ended = session.end().await;
    result.and_then(|value| ended.map(|()| value))
}

impl Session {
    /// Opens the model and starts workers; returns before they are ready.
    ///
    /// # Errors
    /// The model or an address is no good.
    pub async fn start(options: SessionOptions) -> Result<Self> {
        let model = open_model(&options).await?;
        Self::start_with(model, options).await
    }

    /// The same with the session's model, opened.
    ///
    /// # Errors
    /// As [`Session::start`].
    pub async fn start_with(model: Arc<Model>, mut options: SessionOptions) -> Result<Self> {
        let trace = options.trace.as_ref().map(trace_file).transpose()?;
        model.check_ctx(options.ctx)?;
        let mut security = match options.security.take() {
            Some(security) => security,
            None => Security::of_command(&options.line)?,
        };
        let has_planes = model.spec.prefixes(true) == Prefixes::Whole;
        if options.alone && options.speculate != Speculate::Off && has_planes {
            options.max_seqs = options.max_seqs.max(PLANES);
        }
        let max_rows = workers::rows(&options, &model);
        let config = workers::cluster_config(&options, &security, model.spec.n_layer(), max_rows)?;
        let (stop_driver, stop_cluster) = (CancellationToken::new(), CancellationToken::new());
        let meter = Arc::new(Meter::new(trace.is_some()));
        let trained = model.spec.n_ctx_train;
        if options.ctx.is_some_and(|ctx| ctx > trained) {
            tracing::warn!(trained, "--ctx is longer than the model was trained for");
        }
        let limits = Limits {
            n_ctx: model.ctx(options.ctx),
            n_vocab: model.n_vocab(),
            answer: LEAST_ANSWER,
            encoder: model.spec.is_encoder().then_some(max_rows),
        };
        let own_name = options.own_name.take().unwrap_or_else(OwnName::fresh);
        // The line alone has it: who was lent is free when it ends.
        let seat = options.joins.take().and_then(|joins| joins.seat());
        let stop = stop_cluster.clone();
        let called: Option<Arc<str>> = options.called.take().map(Into::into);
        let starting = async {
            metrics::begin();
            brigade_cluster::start(config, seat, own_name, model.clone(), stop).await
        };
        let cluster = metrics::of_model(called.clone(), starting).await?;
        if let Some(control) = &cluster.control {
            security.joins_at(control)?;
        }
        security.keep();
        let roll = cluster.link.roll.clone();
        let (engine, ends) = Engine::channel();
        let sched = sched_config(&options);
        let (n_vocab, adapters) = (model.n_vocab(), model.adapters.by_default());
        let (meter_of, drafter) = (meter.clone(), options.speculate.drafter());
        let prefixes = options.prefixes.take();
        let driver_config =
            DriverConfig { sched, n_vocab, adapters, meter: meter_of, drafter, prefixes };
        let driving = driver::run(ends, cluster.link, driver_config, stop_driver.clone());
        let driver = tokio::spawn(metrics::of_model(called, driving));
        Ok(Self {
            model,
            limits: CurrentLimits::new(limits, engine.clone()),
            admin: cluster.admin.with_cache(Cache::new(engine.clone(), options.keys)),
            engine,
            meter,
            control: cluster.control,
            roll,
            stop_driver,
            stop_cluster,
            run: format!("run-{}", &brigade_line::random::id()[..RUN_ID_CHARS]),
            next_id: AtomicU64::new(0),
            driver,
            cluster: cluster.task,
            trace,
        })
    }

    /// Cancelled when it ends.
    pub fn ends(&self) -> CancellationToken {
        self.stop_driver.clone()
    }

    /// Waits until requests can run, with a progress bar on a terminal.
    ///
    /// # Errors
    /// There will be no line.
    pub async fn ready(&self) -> Result<Arc<LineInfo>> {
        let mut status = self.engine.watch();
        let bar = progress::Bar::new();
        loop {
            match &*status.borrow_and_update() {
                Status::Ready(info) => return Ok(info.clone()),
                Status::Failed { reason } => bail!("{reason}"),
                Status::Stopping => bail!("stopped before the model was loaded"),
                Status::Down { reason, .. } => bar.say(reason),
                Status::Loading(l) => bar.show(&l.what, l.done_bytes, l.total_bytes),
            }
            status.changed().await.context("the driver has ended")?;
        }
    }

    /// Submits a request to the line.
    ///
    /// # Errors
    /// The request was refused.
    pub async fn submit(&self, request: Request) -> Result<Sequence> {
        let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let request = request.named(&format!("{}-{}", self.run, id.0));
        Ok(self.engine.submit(id, request).await?)
    }

    /// Ends the driver, which ends every request, then the crate::clivisor and the local workers; then writes
    /// the trace, if one was asked for.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub async fn end(self) -> Result<()> {
        self.stop_driver.cancel();
        let both = async {
            // A line that is still open lives until its workers know that it is over.
            let driver = self.driver.await;
            self.stop_cluster.cancel();
            (driver, self.cluster.await)
        };
        if tokio::time::timeout(END_WITHIN, both).await.is_err() {
            tracing::warn!("local workers did not end in time and are killed");
        }
        if let (Some((path, file)), Some(trace)) = (self.trace, self.meter.trace()) {
            trace.write(file).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

/// Opens the model of a session, with its adapters and control vectors, under the names and with the template that were asked for.
pub async fn open_model(options: &SessionOptions) -> Result<Arc<Model>> {
    let (path, line) = (options.model.path()?, options.line.clone());
    let is_here = options.model.remote.is_none();
    let open = move |path: &Path| {
        if is_here {
            line.open(path, Model::open_with)
        } else {
            line.open(path, Model::open_header_only_with)
        }
    };
    let opened = tokio::task::spawn_blocking(move || input::open_model(&path, open));
    let mut model = opened.await.context("opening the model")??;
    model.remote.clone_from(&options.model.remote);
    if let Some(found) = &options.model.found {
        model.source = Some(found.entry.sha256());
        if let Some(name) = &found.served_as {
            let text = Arc::get_mut(&mut model.text).context("the model was just opened")?;
            text.set_names(std::slice::from_ref(name));
        }
    }
    if let Some(template) = &options.chat_template {
        let text = Arc::get_mut(&mut model.text).context("the model was just opened")?;
        text.set_template(template).context("--chat-template")?;
    }
    if !options.served_names.is_empty() {
        let text = Arc::get_mut(&mut model.text).context("the model was just opened")?;
        text.set_names(&options.served_names);
    }
    for note in model.notes() {
        tracing::warn!(model = model.name(), "{note}");
    }
    Ok(Arc::new(model))
}

fn sched_config(options: &SessionOptions) -> SchedConfig {
    let (mode, every) = options.checkpoint;
    SchedConfig {
        prefill_rows: options.line.ubatch,
        max_waiting: options.max_waiting,
        repair_within_us: options.repair_within.as_micros() as u64,
        max_windows: options.max_windows,
        marks: options.marks,
        checkpoint_every: (mode != Checkpoint::Off).then_some(every),
        ..SchedConfig::default()
    }
}

fn trace_file(path: &PathBuf) -> Result<(PathBuf, File)> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok((path.clone(), file))
}

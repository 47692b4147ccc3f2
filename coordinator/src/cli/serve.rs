//! `brigade serve` runs the HTTP server, from binding its address to the end of its last stream.

mod conduct;
mod fetches;
mod folder;
mod front;
mod grants;
mod leaving;
mod lines;
mod models;
mod on_demand;
mod orders;
mod patience;
pub mod planned;
mod pool;
mod pulled;
mod room;
mod slot;
mod standing;
mod turns;
#[cfg(test)]
mod turns_tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use brigade_cluster::Patience;
use brigade_http::{App, Door, Fleet, Origins};
use brigade_line::admin::Admin;
use brigade_line::clock;
use brigade_line::current::CurrentLimits;
use brigade_line::driver::PrefixConfig;
use brigade_line::handle::{Engine, Status};
use brigade_line::health::Roll;
use brigade_line::keys::KeyRing;
use brigade_line::measured::metrics;
use brigade_line::model::Model;
use brigade_line::request::{LEAST_ANSWER, Limits};
use brigade_line::stages::prefix_names::Salt;
use brigade_plan::{Checkpoint, DEFAULT_MAX_SEQS, Keep};
use brigade_proto::address::Address;
use brigade_sched::{DEFAULT_CHECKPOINT_EVERY, DEFAULT_MAX_WAITING};
use brigade_worker::prefixes::store::Sizes;
use clap::{Args, ValueEnum};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::config::ConfigFile;
use crate::cli::options::args::{KvArg, LineArgs, MAX_WORKERS, ModelArgs, TemplateArgs};
use crate::cli::options::data_dir::DataDirArgs;
use crate::cli::options::hub::AllowArgs;
use crate::cli::options::security::ClusterArgs;
use crate::cli::options::speculate::SpeculateArgs;
use crate::cli::options::units;
use crate::cli::printing::output;
use crate::cli::running::interrupt::Interrupt;
use crate::cli::running::keeping::KeepArgs;
use crate::cli::running::session::{Joins, Session, SessionOptions};
use front::{Front, FrontArgs};
use leaving::wait_for_answers;
use models::Models;

/// A permanent error shows within this time, where workers need not be waited for. Only then does the server print
/// that it listens. It answers `/health` before.
const TROUBLE_SHOWS_WITHIN: Duration = Duration::from_secs(3);

/// How long cut streams get to write their last event.
const CUT_WITHIN: Duration = Duration::from_secs(2);

/// When layers are cut anew for workers that joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Rebalance {
    /// When it pays.
    Auto,
    /// When an operator says so.
    Manual,
}

/// When a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Load {
    /// When the server starts, and for good.
    Start,
    /// When a request needs it.
    Demand,
}

/// Serve an OpenAI-compatible HTTP API.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  brigade serve -m model.gguf
  brigade serve -m model.gguf --control 10.0.0.1:7000 --expect 3
  brigade token create      the line with which another machine joins
  brigade key create me && brigade serve --listen 0.0.0.0:8443 --tls-cert server.crt --tls-key server.key

  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'

The first SIGINT or SIGTERM lets running answers end within --drain-within, the second cuts them.
With --tls-cert, SIGHUP reads the certificate again.")]
pub struct ServeArgs {
    #[command(flatten)]
    config: ConfigFile,
    #[command(flatten)]
    pub(super) model: ModelArgs,
    /// Let workers join on this address (brigade worker --join)
    #[arg(long, value_name = "ADDR")]
    pub(super) control: Option<Address>,
    /// Workers to wait for before the first line is built, joined ones included; later ones are built by those that are
    /// there, as soon as they have the memory. With several models: the least number of workers that a model is lent
    #[arg(long, value_name = "N", default_value_t = 1, requires = "control")]
    expect: usize,
    /// Positions of a sequence [default: what the model was trained on, as far as memory allows]
    #[arg(long, value_name = "N", aliases = ["ctx-size", "context-size", "context-length", "max-model-len", "num-ctx"])]
    ctx: Option<u32>,
    /// Sequences at once; more wait
    #[arg(long, aliases = ["parallel", "max-num-seqs"], value_name = "N", default_value_t = DEFAULT_MAX_SEQS)]
    max_seqs: u32,
    /// Memory on all stages together for states of prompts and answers, such as 2G: a later request that begins alike,
    /// such as a chat's next turn, then computes only its new tokens. What running sequences leave of theirs keeps
    /// states as well. A number alone counts states; 0: keep none [default: 4 states for each of --max-seqs, or 1 where
    /// the model has recurrent states, which take memory]
    #[arg(long, value_name = "SIZE")]
    keep: Option<Keep>,
    /// Requests that may wait for a place; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_WAITING)]
    max_queue: usize,
    /// How long streams wait for another line when a worker is lost, before they end with an error; 0: they
    /// end at once. Such as 90s, 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = units::duration)]
    repair_within: Duration,
    #[command(flatten)]
    speculation: SpeculateArgs,
    /// Where workers copy the states of running streams, so that less is computed again when a worker is lost: off,
    /// buddy (the memory of the next worker of the line) or disk (each worker's own: brigade worker --cache-dir says where)
    #[arg(long, value_enum, default_value_t = Checkpoint::Off, value_name = "WHERE")]
    checkpoint: Checkpoint,
    /// With --checkpoint: tokens of an answer after which a stream's recurrent states are copied again, in its prompt four
    /// times as many; full KV pages are copied as they fill
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CHECKPOINT_EVERY,
        value_parser = clap::value_parser!(u32).range(1..))]
    checkpoint_every: u32,
    /// Memory of each local worker for records of kept prefixes, e.g. 4G: a prompt's beginning is loaded from them, and
    /// not computed again, when its state was evicted or the line was cut anew; 0: none. Workers on other machines have
    /// their own option --prefix-ram
    #[arg(long, value_name = "SIZE", value_parser = units::size_or_none, default_value = "0")]
    prefix_ram: u64,
    /// Disk space of each local worker for such records, in the cache's folder: there they also outlive the processes
    #[arg(long, value_name = "SIZE", value_parser = units::size_or_none, default_value = "0")]
    prefix_disk: u64,
    /// How long to wait for a lost worker before its layers go to the other workers, or to a spare one, if they have
    /// the memory. There is no wait if, with a spare, as many workers as before are connected. Such as 0, 30s, 5m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    replace_after: Duration,
    /// Whether the server cuts layers anew by itself when workers have joined, or compute slower than planned, and the
    /// line would be at least 15 % faster: auto (yes, at most every 5 minutes) or manual (only on brigade cluster
    /// rebalance)
    #[arg(long, value_enum, default_value_t = Rebalance::Manual)]
    rebalance: Rebalance,
    /// How long a worker must compute slower than planned before --rebalance auto takes layers from it
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = units::duration)]
    slow_after: Duration,
    /// When the model is loaded: start, with the server; demand, when a request needs it; if there is no room, idle
    /// models are unloaded
    #[arg(long, value_enum, default_value_t = Load::Start, value_name = "WHEN")]
    load: Load,
    /// With --load demand: unload the model when it has been idle for this time [default: when another one needs its
    /// memory]. Such as 10m
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    unload_after: Option<Duration>,
    /// With --load demand: how long a model in constant use stays loaded before it makes room for one that waits. It
    /// then takes no new requests, completes those that run, and is unloaded. Such as 60s [default: six times as long as
    /// it took to load, 60s at most]
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    swap_after: Option<Duration>,
    /// With --load demand: how long a load may stand still, without a byte more than before, until it is given up and its
    /// room is free. Such as 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = units::some_time)]
    load_patience: Duration,
    /// With --load demand: most models that are loaded at once [default: as many as have room]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    max_loaded: Option<usize>,
    /// How long running answers may take to end after the first SIGINT or SIGTERM, those of all models beside each other; then
    /// they are cut. Such as 2m
    #[arg(long, value_name = "TIME", default_value = "20s", value_parser = units::duration)]
    drain_within: Duration,
    #[command(flatten)]
    keep_args: KeepArgs,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    kv_type: KvArg,
    /// A web page's origin (https://chat.example) whose scripts may use this server, beside pages of this
    /// machine; repeatable, *: any
    #[arg(long, value_name = "ORIGIN")]
    cors: Vec<String>,
    /// A name by which requests may call the model instead of its file's; repeatable, the first one is the one that
    /// answers carry. *: any name
    #[arg(long, alias = "alias", value_name = "NAME")]
    served_model_name: Vec<String>,
    /// Write a timeline of the last 20000 ubatches through all stages, for ui.perfetto.dev or
    /// chrome://tracing, when the server ends
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    allow: AllowArgs,
    #[command(flatten)]
    front: FrontArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    pub(super) line: LineArgs,
    /// The server's other models, from the file of options.
    #[arg(skip)]
    pub(super) others: Vec<Self>,
    /// Options of the models of a folder, if they are served.
    #[arg(skip)]
    folder: Option<Arc<Self>>,
    /// Options of the models that requests have fetched, if names are open to them.
    #[arg(skip)]
    pulled: Option<Arc<Self>>,
    /// Whether these options are of such models alone, and not of one of their own.
    #[arg(skip)]
    has_no_model: bool,
}

impl ServeArgs {
    /// The options of each model.
    fn models(&self) -> impl Iterator<Item = &Self> {
        (!self.has_no_model).then_some(self).into_iter().chain(&self.others)
    }

    /// The folder of models that they name.
    pub fn models_dir(&self) -> Option<&Path> {
        self.model.hub.models_dir.as_deref()
    }

    /// The models of the folder are served with the options `base`: beside others, or alone.
    pub fn add_folder(&mut self, base: Self, is_alone: bool) {
        self.folder = Some(Arc::new(base));
        self.has_no_model |= is_alone;
    }

    /// Whether requests may have models fetched.
    pub fn allows_pulls(&self) -> bool {
        !self.allow.patterns.is_empty()
    }

    /// Models that requests have fetched are served with the options `base`: beside others, or alone.
    pub fn add_pulls(&mut self, base: Self, is_alone: bool) {
        self.pulled = Some(Arc::new(base));
        self.has_no_model |= is_alone;
    }

    /// Options of models that come while the server runs.
    fn comes(&self) -> impl Iterator<Item = &Self> {
        self.folder.as_deref().into_iter().chain(self.pulled.as_deref())
    }

    /// Each model and its line, and whether workers join that.
    pub fn all_models(&mut self) -> impl Iterator<Item = (&mut ModelArgs, &LineArgs, bool)> {
        let of = |(model, line, joins): (_, _, &Option<Address>)| (model, line, joins.is_some());
        let first = (&mut self.model, &self.line, &self.control);
        let others = self.others.iter_mut();
        let others = others.map(|other| (&mut other.model, &other.line, &other.control));
        [first].into_iter().chain(others).map(of)
    }

    /// The model is in this file; `None`: the demo model.
    pub fn set_model(&mut self, file: Option<PathBuf>) {
        self.model.model = file;
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(n @ 1..) => Ok(n),
        _ => Err("a whole number, at least 1".to_owned()),
    }
}

/// Runs the command.
pub async fn execute(args: ServeArgs) -> Result<()> {
    ensure!(args.expect <= MAX_WORKERS, "--expect is at most {MAX_WORKERS}");
    let mut interrupt = Interrupt::listen()?;
    if args.front.has_tls() {
        interrupt.leave_hangup();
    }
    let metrics = metrics::install().context("cannot install the metrics recorder")?;
    let front = Front::open(&args.front, &args.line).await?;
    let (url, admin_url) = (front.url(), front.admin_url());
    let draining = CancellationToken::new();
    if let Some(Keep::States(n)) = args.keep.filter(|keep| !keep.is_nothing()) {
        tracing::info!("--keep {n} counts states; a size such as --keep 2G gives them memory");
    }
    let args = Arc::new(args);
    let (served, shared) = lines::open(&args, &front).await?;
    let all = args.models().chain(args.comes());
    let of_each = all.map(|args| (args.max_seqs as usize).saturating_add(args.max_queue));
    let requests = of_each.fold(0, usize::saturating_add);
    let door = front.door(requests, metrics, draining.clone());
    tokio::spawn(door.streams.clone().sweep(draining.clone()));
    let folder = args.keep_args.folder(args.front.listen(), &args.line.data_dir);
    let mut models = Models::start(served, &door, folder.as_deref(), &args).await?;
    let (found, pulled) = models.open_more(&args, front.keys(), shared.clone()).await?;
    let members = models.members(&door);
    let mut fleet = match (found, &pulled) {
        (None, None) => Fleet::new(members)?,
        (None, Some(_)) => Fleet::growing(door.clone(), members)?,
        (Some(found), _) => {
            Fleet::with_source(door.clone(), members, found.clone(), found.members())?
        }
    };
    if let Some(pulled) = pulled {
        fleet = fleet.with_fetcher(Arc::new(pulled::AtTheDoor(pulled)));
    }
    if let Some(operators) = models.operators() {
        if let Some(folder) = &folder {
            lines::open_socket(folder, &operators, &draining);
        }
        fleet = fleet.with_operators(operators);
    }
    let joined_by_all = shared.as_ref().map(|shared| shared.pool.control());
    let of_its_own = || models.lines.first().and_then(|line| line.session.control.as_ref());
    if let Some(control) = joined_by_all.or_else(of_its_own) {
        say(format_args!("brigade control on {control}"));
    }
    say(format_args!("brigade admin on {admin_url}"));
    let mut serving = front.serve(fleet, Origins::new(&args.cors), requests, draining.clone());
    if models.are_promising().await {
        say(format_args!("brigade serve listening on {url}"));
    }
    let result = tokio::select! {
        ended = &mut serving.public => return ended.context("the HTTP server ended"),
        () = interrupt.received() => Ok(()),
        reason = models.all_failed() => Err(anyhow::anyhow!(reason)),
    };
    draining.cancel();
    let all_answered = result.is_ok()
        && wait_for_answers(&mut serving.public, &mut interrupt, args.drain_within).await;
    let ended = models.end().await;
    if !all_answered {
        // Streams have had their last event; connections that are still open belong to clients that do not read.
        let _ = tokio::time::timeout(CUT_WITHIN, &mut serving.public).await;
    }
    serving.end();
    result.and(ended)
}

/// The handlers' state for the session's model, behind `door`.
pub fn app_of(session: &Session, door: Arc<Door>, max_seqs: u32) -> App {
    App {
        engine: session.engine.clone(),
        text: session.model.text.clone(),
        heads: session.model.heads.clone(),
        limits: session.limits.clone(),
        adapters: session.model.adapters.clone(),
        meta: Arc::new(session.model.meta(session.limits.now().n_ctx)),
        created: clock::unix_now(),
        roll: session.roll.clone(),
        max_seqs,
        keeps: true,
        journal: None,
        admin: session.admin.clone(),
        in_use: Arc::default(),
        door,
    }
}

/// The handlers' state for a model that is not loaded.
fn app_without_line(model: &Model, args: &ServeArgs, door: Arc<Door>) -> App {
    let engine = Engine::not_loaded();
    let n_ctx = model.ctx(args.ctx);
    let limits = Limits { n_ctx, n_vocab: model.n_vocab(), answer: LEAST_ANSWER, encoder: None };
    let encoder = model.spec.is_encoder().then_some(model.default_rows(args.ctx));
    App {
        limits: CurrentLimits::new(Limits { encoder, ..limits }, engine.clone()),
        engine,
        text: model.text.clone(),
        heads: model.heads.clone(),
        adapters: model.adapters.clone(),
        meta: Arc::new(model.meta(n_ctx)),
        created: clock::unix_now(),
        roll: watch::channel(Roll::default()).1,
        max_seqs: args.max_seqs,
        keeps: !args.keep.is_some_and(Keep::is_nothing),
        journal: None,
        admin: Admin::channel().0,
        in_use: Arc::default(),
        door,
    }
}

fn session_options(args: &ServeArgs, keys: Option<KeyRing>) -> Result<SessionOptions> {
    Ok(SessionOptions {
        model: args.model.clone(),
        line: args.line.clone(),
        ctx: args.ctx,
        kv_type: args.kv_type,
        max_seqs: args.max_seqs,
        keep: args.keep,
        marks: true,
        joins: args.control.clone().map(|address| Joins::At(address, args.expect)),
        security: None,
        patience: Patience::Forever,
        max_waiting: args.max_queue,
        repair_within: args.repair_within,
        alone: false,
        speculate: args.speculation.speculate(),
        max_windows: args.speculation.max_windows(),
        checkpoint: (args.checkpoint, args.checkpoint_every),
        others: Arc::default(),
        replace_after: args.replace_after,
        rebalance: args.rebalance == Rebalance::Auto,
        slow_after: args.slow_after,
        own_name: None,
        called: None,
        prefixes: prefix_config(&args.line.data_dir, keys.clone()),
        keys,
        local_prefixes: Sizes { ram: args.prefix_ram, disk: args.prefix_disk },
        trace: args.trace.clone(),
        chat_template: args.template.source()?,
        served_names: args.served_model_name.clone(),
    })
}

/// Settings for records of prefixes on the workers; `None` where there is no place for the salt of their names.
fn prefix_config(data_dir: &DataDirArgs, keys: Option<KeyRing>) -> Option<PrefixConfig> {
    let folder = data_dir.find()?;
    match Salt::kept_in(&folder) {
        Ok(salt) => Some(PrefixConfig { salt, keys }),
        Err(error) => {
            let folder = folder.display();
            tracing::warn!(
                %folder,
                %error,
                "no salt in the data folder: workers with --prefix-ram or --prefix-disk keep no prompts; name another \
                 folder with --data-dir"
            );
            None
        }
    }
}

/// Prints a line for the process that started the server. The server goes on if the output cannot be written.
fn say(text: std::fmt::Arguments<'_>) {
    if let Err(error) = output::line(text) {
        tracing::debug!(%error, "standard output is closed");
    }
}

/// Waits until a line is being built, or for [`TROUBLE_SHOWS_WITHIN`]; false where there will never be one.
async fn is_promising(session: &Session) -> bool {
    let mut status = session.engine.watch();
    let mut roll = session.roll.clone();
    let news = async {
        loop {
            match &*status.borrow_and_update() {
                // It answers, and says why there is no line.
                Status::Failed { .. } => return session.model.check_unchanged().is_err(),
                Status::Ready(_) | Status::Stopping => return true,
                // An attempt that failed may have been the last one.
                Status::Loading(_) | Status::Down { .. } => {}
            }
            if !roll.borrow_and_update().line.is_empty() {
                return true;
            }
            tokio::select! {
                changed = status.changed() => if changed.is_err() { return false },
                changed = roll.changed() => if changed.is_err() { return false },
            }
        }
    };
    tokio::time::timeout(TROUBLE_SHOWS_WITHIN, news).await.unwrap_or(true)
}

/// Waits for the reason why there will never be a line, which ends the server. Where the model's file has changed,
/// the line alone ends: the server lives on, and clients get the reason.
async fn failed(session: &Session) -> String {
    let mut status = session.engine.watch();
    loop {
        // The lock is not held while waiting, so the status can change.
        let reason = match &*status.borrow_and_update() {
            Status::Failed { reason } => Some(reason.clone()),
            _ => None,
        };
        match reason {
            Some(reason) if session.model.check_unchanged().is_ok() => return reason,
            Some(reason) => {
                tracing::error!(reason, "the line has ended for good");
                std::future::pending::<()>().await;
            }
            None => {}
        }
        if status.changed().await.is_err() {
            return "the driver has ended".to_string();
        }
    }
}

//! `brigade serve`: the HTTP server, from the first listen to the last stream.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use brigade_proto::address::Address;
use clap::{Args, ValueEnum};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::args::{KvArg, LineArgs, MAX_WORKERS, ModelArgs, TemplateArgs};
use super::keeping::{KeepArgs, Keeping, journal};
use super::session::{Interrupt, Session, SessionOptions};
use super::{output, units};
use crate::clock;
use crate::cluster::{OwnName, Patience, admin};
use crate::handle::Status;
use crate::http::{self, App, ConnectionLimits, Streams};
use crate::metrics;
use crate::plan::{DEFAULT_MAX_SEQS, MAX_KEEP};
use crate::sched::DEFAULT_MAX_WAITING;

/// How long running answers may take to end after the first signal.
const GRACE: Duration = Duration::from_secs(20);

/// What keeps a line from ever being built shows within this time where workers need not be waited for; only then
/// does the server say that it listens. It answers `/health` before.
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

/// Serve an OpenAI-compatible HTTP API.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  brigade serve -m model.gguf
  brigade serve -m model.gguf --worker 10.0.0.2:7070 --worker 10.0.0.3:7070 --insecure-network
  brigade serve -m model.gguf --control 10.0.0.1:7000 --expect 3 --insecure-network

  curl http://127.0.0.1:8080/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}'

The first SIGINT or SIGTERM lets running answers end within 20 s, the second cuts them.")]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Where to serve HTTP
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8080")]
    listen: String,
    /// Let workers join on this address (brigade worker --join)
    #[arg(long, value_name = "ADDR")]
    control: Option<Address>,
    /// Workers to wait for before the first line is built, joined ones included; later ones are built by those
    /// that are there, as soon as they have the memory
    #[arg(long, value_name = "N", default_value_t = 1, requires = "control")]
    expect: usize,
    /// Positions of a sequence [default: what the model was trained on, at most 4096]
    #[arg(long, value_name = "N")]
    ctx: Option<u32>,
    /// Sequences at once; more wait
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_SEQS)]
    max_seqs: u32,
    /// Sequences kept for later requests that begin alike, so that a chat's next turn computes only what
    /// is new; 0: none [default: 4 for each of --max-seqs, or 1 where the model has recurrent states, which
    /// take memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_KEEP)))]
    keep: Option<u32>,
    /// Requests that may wait for a place; more are refused with 429
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MAX_WAITING)]
    max_queue: usize,
    /// How long streams wait for another line when a worker is lost, before they end with an error; 0: they
    /// end at once. Such as 90s, 5m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = units::duration)]
    repair_within: Duration,
    /// How long a worker that was lost is waited for before its layers go to the others, or to a spare worker, if
    /// they have the memory; where as many workers as before are there, nobody is waited for. Such as 0, 30s, 5m
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = units::duration)]
    replace_after: Duration,
    /// Whether layers are cut anew when workers have joined and the line would be at least 15 % faster: auto, at
    /// most every 5 minutes; manual: by brigade cluster rebalance
    #[arg(long, value_enum, default_value_t = Rebalance::Manual)]
    rebalance: Rebalance,
    #[command(flatten)]
    keep_args: KeepArgs,
    /// Type of the KV cache
    #[arg(long, value_enum, default_value_t = KvArg::F16)]
    kv_type: KvArg,
    /// Let /health say what is being loaded and why the line is down, to everybody who asks: names and addresses of
    /// workers are in it
    #[arg(long)]
    health_details: bool,
    /// Write a timeline of the last 20000 ubatches through all stages, for ui.perfetto.dev or
    /// chrome://tracing, when the server ends
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    template: TemplateArgs,
    #[command(flatten)]
    line: LineArgs,
}

/// Runs the command.
pub async fn execute(args: ServeArgs) -> Result<()> {
    if args.expect > MAX_WORKERS {
        bail!("--expect is at most {MAX_WORKERS}");
    }
    let mut interrupt = Interrupt::listen()?;
    let metrics = metrics::install().context("cannot install the metrics recorder")?;
    let listener = listen(&args.listen, args.line.insecure_network).await?;
    let address = listener.local_addr()?;
    let draining = CancellationToken::new();
    let keeping = args.keep_args.find(&args.listen)?.map(Keeping::into_parts);
    let (own_name, folder) = keeping.unzip();
    let session = Session::start(options(&args, own_name)?).await?;
    if let Some(folder) = &folder {
        let listening = admin::listen(folder, session.admin.clone(), draining.clone());
        listening.context("the admin socket in the data folder")?;
    }
    let journal = folder.map(|f| journal(&f, &session.model, args.kv_type, &args.line));
    let (journal, recovered) = journal.transpose()?.unzip();
    let app = App {
        engine: session.engine.clone(),
        text: session.model.text.clone(),
        limits: session.limits,
        meta: Arc::new(session.model.meta(session.limits.n_ctx)),
        created: clock::unix_now(),
        metrics,
        draining: draining.clone(),
        sequences: Arc::default(),
        bodies: http::Bodies::default(),
        health_details: args.health_details,
        roll: session.roll.clone(),
        streams: Streams::new(journal.clone()),
    };
    tokio::spawn(app.streams.clone().sweep(draining.clone()));
    http::go_on(&app, recovered.unwrap_or_default());
    if let Some(control) = &session.control {
        say(format_args!("brigade control on {control}"));
    }
    let limits =
        ConnectionLimits::of_server((args.max_seqs as usize).saturating_add(args.max_queue));
    let mut server =
        tokio::spawn(http::serve(listener, http::router(app), draining.clone(), limits));
    if is_promising(&session).await {
        say(format_args!("brigade serve listening on http://{address}"));
    }
    let result = tokio::select! {
        ended = &mut server => return ended.context("the HTTP server ended"),
        () = interrupt.received() => Ok(()),
        reason = failed(&session) => Err(anyhow::anyhow!(reason)),
    };
    draining.cancel();
    let all_answered = result.is_ok() && wait_for_answers(&mut server, &mut interrupt).await;
    let ended = session.end().await;
    if let Some(journal) = journal {
        journal.close();
    }
    if !all_answered {
        // Streams have had their last event; what is still open now is a client that does not read.
        let _ = tokio::time::timeout(CUT_WITHIN, server).await;
    }
    result.and(ended)
}

fn options(args: &ServeArgs, own_name: Option<OwnName>) -> Result<SessionOptions> {
    Ok(SessionOptions {
        model: args.model.clone(),
        line: args.line.clone(),
        ctx: args.ctx,
        kv_type: args.kv_type,
        max_seqs: args.max_seqs,
        keep: args.keep,
        control: args.control.clone().map(|address| (address, args.expect)),
        patience: Patience::Forever,
        max_waiting: args.max_queue,
        repair_within: args.repair_within,
        replace_after: args.replace_after,
        rebalance: args.rebalance == Rebalance::Auto,
        own_name,
        trace: args.trace.clone(),
        chat_template: args.template.source()?,
    })
}

/// What is left of a server that has stopped: answers that run get [`GRACE`]. Whether all of them ended.
async fn wait_for_answers(server: &mut JoinHandle<()>, interrupt: &mut Interrupt) -> bool {
    tracing::info!(seconds = GRACE.as_secs(), "no new requests; waiting for running answers");
    tokio::select! {
        _ = server => return true,
        () = tokio::time::sleep(GRACE) => tracing::warn!("cutting answers that still run"),
        () = interrupt.received() => tracing::warn!("second signal: cutting answers"),
    }
    false
}

/// Tells whoever started the server; it serves on where nobody listens to that.
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
                Status::Failed { .. } => return false,
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

/// The reason why there will never be a line.
async fn failed(session: &Session) -> String {
    let mut status = session.engine.watch();
    loop {
        if let Status::Failed { reason } = &*status.borrow_and_update() {
            return reason.clone();
        }
        if status.changed().await.is_err() {
            return "the driver has ended".to_string();
        }
    }
}

async fn listen(text: &str, insecure_network: bool) -> Result<TcpListener> {
    let address: Address = text.parse().context("--listen")?;
    let sockets: Vec<SocketAddr> = address.resolve(insecure_network).await.context("--listen")?;
    if sockets.is_empty() {
        bail!("--listen {text}: HTTP is served on TCP only: give HOST:PORT");
    }
    TcpListener::bind(sockets.as_slice()).await.with_context(|| format!("cannot listen on {text}"))
}

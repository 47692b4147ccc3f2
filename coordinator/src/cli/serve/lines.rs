//! The lines of a server: one for each model that it serves, each with a supervisor, a driver, a journal, and a name under
//! which it holds workers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Result, bail, ensure};
use brigade_cluster::{Demand, Seat};
use brigade_http::{App, Door};
use brigade_line::admin::{self, Admin};
use brigade_line::journal::{Journal, Recovered};
use brigade_line::keys::KeyRing;
use brigade_line::model::Model;
use brigade_plan::Keep;
use brigade_worker::machine::memory;
use tokio_util::sync::CancellationToken;

use super::front::Front;
use super::pool::Shared;
use super::{Load, ServeArgs, app_of, session_options};
use crate::cli::options::security::Security;
use crate::cli::running::keeping::{Keeping, MODELS, folder_of, has_requests, journal};
use crate::cli::running::session::{
    Joins, Session, SessionOptions, demand, open_model, worker_address,
};

/// Where not all models fit at once, one part in so many of the memory is for the states of each.
const STATES_SHARE: u64 = 8;

/// A model that the server may have a line for.
#[derive(Debug)]
pub struct Served {
    args: Arc<ServeArgs>,
    /// The index of its model in the arguments.
    at: usize,
    pub model: Arc<Model>,
    /// The model's name, where there are several.
    name: Option<String>,
    /// Memory of all its local workers, in bytes; `None`: all that they find.
    pub grant: Option<u64>,
    keys: Option<KeyRing>,
    /// The pool that lends it workers; `None`: it has its own.
    pub shared: Option<Arc<Shared>>,
    /// Bytes that each other model needs at least that the pool lends workers to.
    others: Arc<[u64]>,
    /// Whether the server's authority, if it has one, was begun beside it.
    has_authority: bool,
    /// Whether its line was started before.
    was_started: AtomicBool,
    /// Whether streams of the server before this one go on, once it was looked for.
    goes_on: OnceLock<bool>,
}

/// A model with its line.
#[derive(Debug)]
pub struct Line {
    pub session: Session,
    folder: Option<PathBuf>,
    journal: Option<Journal>,
    recovered: Vec<Recovered>,
    max_seqs: u32,
    keeps: bool,
}

/// Opens all models of a server, and says how much memory each may have.
///
/// # Errors
/// A model is no good, or two models want what only one can have.
pub async fn open(
    args: &Arc<ServeArgs>,
    front: &Front,
) -> Result<(Vec<Served>, Option<Arc<Shared>>)> {
    let all: Vec<&ServeArgs> = args.models().collect();
    check(&all)?;
    let several = all.len() > 1 || args.comes().next().is_some();
    let mut served = Vec::new();
    for (at, of_model) in all.iter().enumerate() {
        let options = session_options(of_model, front.keys())?;
        let model = open_model(&options).await?;
        let name = several.then(|| model.name().to_owned());
        let (args, keys) = (args.clone(), front.keys());
        let (was_started, has_authority) = (AtomicBool::default(), at > 0);
        let (grant, shared) = (None, None);
        served.push(Served {
            args,
            at,
            model,
            name,
            grant,
            keys,
            shared,
            others: Arc::default(),
            has_authority,
            was_started,
            goes_on: OnceLock::new(),
        });
    }
    if !several {
        return Ok((served, None));
    }
    grant(&mut served, memory::available_bytes());
    let Some(control) = &args.control else { return Ok((served, None)) };
    let named = all.iter().flat_map(|args| args.line.worker.iter().map(|w| (w, &args.line)));
    let named = named.map(|(worker, line)| worker_address(worker, line));
    let shared = Shared::open(args, control, named.collect::<Result<_>>()?).await?;
    for served in &mut served {
        served.has_authority = true;
        served.shared = served.borrows().then(|| shared.clone());
    }
    tell_of_others(&mut served, &shared)?;
    Ok((served, Some(shared)))
}

/// Tells the models that borrow workers what the others need of these.
///
/// # Errors
/// A model cannot be cut as its options say.
fn tell_of_others(all: &mut [Served], shared: &Shared) -> Result<()> {
    let mut borrow: Vec<&mut Served> = all.iter_mut().filter(|s| s.shared.is_some()).collect();
    let least = |served: &&mut Served| Ok(served.demand()?.least_bytes());
    let least: Vec<u64> = borrow.iter().map(least).collect::<Result<_>>()?;
    for (at, served) in borrow.iter_mut().enumerate() {
        served.others = others(&least, at);
    }
    shared.tell_needs(least);
    Ok(())
}

/// What all but one of these models need.
pub fn others(least: &[u64], own: usize) -> Arc<[u64]> {
    let others = least.iter().enumerate().filter(|(at, _)| *at != own);
    others.map(|(_, bytes)| *bytes).collect()
}

/// Refuses models that want the same worker.
fn check(all: &[&ServeArgs]) -> Result<()> {
    if all.len() < 2 {
        return Ok(());
    }
    let mut named = BTreeSet::new();
    for worker in all.iter().flat_map(|args| &args.line.worker) {
        ensure!(
            named.insert(worker),
            "two models name the worker {worker}: it has layers of one model, so start another `brigade worker` beside it for the \
             other"
        );
    }
    if all.iter().any(|args| args.trace.is_some()) {
        bail!("--trace is of one line: choose its model with -m NAME")
    } else {
        Ok(())
    }
}

/// Local workers may have the memory of their model's weights, and an equal share of the memory that is free beyond
/// all weights. Where not all models fit at once, each may have a share of the whole for its states.
fn grant(all: &mut [Served], free: Option<u64>) {
    let Some(free) = free.map(|free| free.saturating_sub(memory::RESERVE_BYTES)) else { return };
    let said: u64 = all.iter().filter_map(Served::said_memory).sum();
    let free = free.saturating_sub(said);
    let mut unsaid: Vec<_> = all.iter_mut().filter(|served| served.shares_memory()).collect();
    let weights: u64 = unsaid.iter().map(|served| served.model.weight_bytes()).sum();
    let each = if weights < free {
        (free - weights) / unsaid.len().max(1) as u64
    } else {
        free / STATES_SHARE
    };
    for served in &mut unsaid {
        let bytes = served.model.weight_bytes() + each;
        tracing::info!(model = served.model.name(), bytes, "memory of its local workers");
        served.grant = Some(bytes);
    }
}

impl Served {
    /// A model of a folder, by options of its own, where so many bytes are free. It is not loaded.
    ///
    /// # Errors
    /// The model is no good.
    pub async fn of_folder(
        args: ServeArgs,
        keys: Option<KeyRing>,
        shared: Option<Arc<Shared>>,
        free: Option<u64>,
    ) -> Result<Self> {
        let args = Arc::new(args);
        let model = open_model(&session_options(&args, keys.clone())?).await?;
        let name = Some(model.name().to_owned());
        let was_started = AtomicBool::default();
        let mut served = Self {
            args,
            at: 0,
            model,
            name,
            grant: None,
            keys,
            shared: None,
            others: Arc::default(),
            has_authority: true,
            was_started,
            goes_on: OnceLock::new(),
        };
        if served.shares_memory() {
            served.grant = free.map(|free| served.model.weight_bytes() + free / STATES_SHARE);
        }
        served.shared = shared.filter(|_| served.borrows());
        served.others = served.shared.as_ref().map_or_else(Arc::default, |shared| shared.needs());
        Ok(served)
    }

    pub fn args(&self) -> &ServeArgs {
        self.args.models().nth(self.at).unwrap_or(&self.args)
    }

    /// Whether it waits for a request before it is loaded.
    pub fn is_on_demand(&self) -> bool {
        self.args().load == Load::Demand
    }

    /// Whether it has no workers of its own where workers join.
    fn borrows(&self) -> bool {
        let args = self.args();
        args.control.is_some() && args.line.worker.is_empty() && args.line.workers.is_none()
    }

    /// Whether its local workers have no memory limit of their own, and share the free memory.
    fn shares_memory(&self) -> bool {
        let line = &self.args().line;
        let is_local = line.worker.is_empty() && !self.borrows();
        is_local && line.memory.is_none() && line.device.is_none()
    }

    /// The memory that its options give its local workers.
    fn said_memory(&self) -> Option<u64> {
        let line = &self.args().line;
        let each = line.memory.filter(|_| line.worker.is_empty() && !self.borrows())?;
        Some(each.saturating_mul(line.local_workers() as u64))
    }

    /// Memory of this machine that its line takes at most.
    pub fn host_memory(&self) -> u64 {
        self.said_memory().or(self.grant).unwrap_or(0)
    }

    /// The demand of its line, where it borrows its workers.
    ///
    /// # Errors
    /// The model cannot be cut as its options say.
    pub fn demand(&self) -> Result<Demand> {
        let args = self.args();
        let options = self.session_options()?;
        let demand = demand(self.model.clone(), &options, args.expect)?;
        // The journal is read once: later its streams go on already.
        let goes_on = *self.goes_on.get_or_init(|| self.has_requests().unwrap_or_default());
        Ok(Demand { goes_on, ..demand })
    }

    fn session_options(&self) -> Result<SessionOptions> {
        let options = session_options(self.args(), self.keys.clone())?;
        Ok(SessionOptions { others: self.others.clone(), ..options })
    }

    /// The line's security, and the way in which workers join: by this `seat`, if it was taken before.
    async fn ways(&self, seat: Option<Arc<Seat>>) -> Result<(Security, Option<Joins>)> {
        let args = self.args();
        if let Some(shared) = &self.shared {
            let seat = match seat {
                Some(seat) => seat,
                None => shared.pool.seat(self.demand()?),
            };
            return Ok((shared.security(), Some(shared.joins(seat, args.expect))));
        }
        // Of several models, those with workers of their own are joined by none.
        let control = args.control.as_ref().filter(|_| self.name.is_none());
        // A new authority is begun once, and not with each line.
        let again = self.has_authority || self.was_started.swap(true, Ordering::Relaxed);
        let security = Security::of_server(&args.cluster, &args.line, control, again).await?;
        Ok((security, control.map(|control| Joins::At(control.clone(), args.expect))))
    }

    /// Whether the server before this one had begun requests to it that are to go on.
    ///
    /// # Errors
    /// The model's journal cannot be read.
    pub fn has_requests(&self) -> Result<bool> {
        let args = self.args();
        let (listen, data_dir) = (args.front.listen(), &args.line.data_dir);
        let Some(folder) = args.keep_args.folder(listen, data_dir) else { return Ok(false) };
        let name = folder_of(self.name.as_deref().unwrap_or_default());
        let folder = if self.name.is_some() { folder.join(MODELS).join(name) } else { folder };
        has_requests(&folder, &self.model, args.kv_type, &args.line)
    }

    /// Starts its line, which is not ready when this returns; with workers that were lent to `seat`.
    ///
    /// # Errors
    /// An address or a folder is no good.
    pub async fn start(&self, seat: Option<Arc<Seat>>) -> Result<Line> {
        let args = self.args();
        let (listen, data_dir) = (args.front.listen(), &args.line.data_dir);
        let keeping = args.keep_args.find(listen, data_dir, self.name.as_deref())?;
        let (own_name, folder) = keeping.map(Keeping::into_parts).unzip();
        let mut options = self.session_options()?;
        let (security, joins) = self.ways(seat).await?;
        (options.security, options.joins) = (Some(security), joins);
        options.own_name = own_name;
        options.called = self.name.clone();
        if let Some(bytes) = self.grant {
            options.line.memory = Some(bytes / options.line.local_workers() as u64);
        }
        let session = Session::start_with(self.model.clone(), options).await?;
        let of = |folder: &PathBuf| journal(folder, &session.model, args.kv_type, &args.line);
        let (journal, recovered) = folder.as_ref().map(of).transpose()?.unzip();
        let (max_seqs, keeps) = (args.max_seqs, !args.keep.is_some_and(Keep::is_nothing));
        let recovered = recovered.unwrap_or_default();
        Ok(Line { session, folder, journal, recovered, max_seqs, keeps })
    }
}

impl Line {
    /// The handlers' state for it, behind `door`. Requests of the coordinator before this one go on.
    pub fn open(&mut self, door: Arc<Door>) -> App {
        let app = app_of(&self.session, door, self.max_seqs);
        let app = App { journal: self.journal.clone(), keeps: self.keeps, ..app };
        brigade_http::go_on(&app, std::mem::take(&mut self.recovered));
        app
    }

    /// Where `brigade cluster` reaches it, until `stop`; it serves on where the system makes no socket there.
    pub fn open_admin_socket(&self, stop: &CancellationToken) {
        if let Some(folder) = &self.folder {
            open_socket(folder, &self.session.admin, stop);
        }
    }

    /// Ends it; its journal is whole then.
    ///
    /// # Errors
    /// As [`Session::end`].
    pub async fn end(self) -> Result<()> {
        let ended = self.session.end().await;
        if let Some(journal) = self.journal {
            journal.close();
        }
        ended
    }
}

/// Where `brigade cluster` reaches `admin`, until `stop`; the server serves on where the system makes no socket there.
pub fn open_socket(folder: &Path, admin: &Admin, stop: &CancellationToken) {
    let opened = std::fs::create_dir_all(folder);
    let opened = opened.and_then(|()| admin::listen(folder, admin.clone(), stop.clone()));
    if let Err(error) = opened {
        let folder = folder.display();
        tracing::warn!(
            %folder,
            %error,
            "no admin socket in the data folder: `brigade cluster` does not reach this server; send orders to /admin/cluster of the admin listener"
        );
    }
}

//! Models that requests have fetched (`--allow-pull`). A fetch is a job that many requests share. What came is a model on
//! demand like all others, and only keys that may load models know of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use brigade_http::{App, Coming, Fetch, Fetched, Fetcher, Loader, Member, NotLoaded, Wish};
use brigade_hub::HubError;
use brigade_hub::lock::Entry;
use brigade_hub::name::HubName;
use brigade_hub::pulls::{Pulls, names};
use brigade_hub::resolver::{Found, Watch};
use brigade_line::admin::ModelState;
use brigade_line::clock;
use brigade_line::health::Loading;
use brigade_line::keys::{Force, KeyRing};
use brigade_line::measured::models::{self, Outcome};
use brigade_worker::machine::memory;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::fetches::{Fetches, WishId};
use super::lines::Served;
use super::on_demand::Stable;
use super::pool::Shared;
use super::slot::Slot;
use super::turns::Key;
use super::{Load, ServeArgs};

/// For so long a fetch that failed is not tried again: the next requests get the same answer.
const FAILED_FOR: Duration = Duration::from_secs(30);

/// Most failures that are remembered.
const MAX_FAILED: usize = 1000;

/// How often it is looked whether somebody still wants what is fetched, and how long a download may take to end.
const STOP_LOOK_EVERY: Duration = Duration::from_millis(500);
const STOPS_WITHIN: Duration = Duration::from_secs(2);

/// A download's speed is told when it has run for this time.
const MEASURED_AFTER: Duration = Duration::from_secs(1);

/// Models that requests have fetched, and those that are being fetched.
#[derive(Debug)]
pub struct Pulled {
    pulls: Pulls,
    /// Options of each of its models.
    base: Arc<ServeArgs>,
    keys: Option<KeyRing>,
    shared: Option<Arc<Shared>>,
    free: Option<u64>,
    stable: Arc<Stable>,
    state: Mutex<State>,
    /// Held while a model is opened, so that each is opened once.
    opening: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    order: Fetches,
    /// Models of this machine, by their names in the lock.
    here: BTreeMap<String, Here>,
    /// Fetches that have begun or wait, by the name that was asked for.
    jobs: BTreeMap<String, Arc<Job>>,
    /// Fetches that failed lately.
    failed: BTreeMap<String, (Instant, NotLoaded)>,
}

#[derive(Debug)]
struct Here {
    slot: Arc<Slot>,
    member: Member,
    /// Keeps other processes from deleting it.
    _held: Option<File>,
}

/// A fetch.
#[derive(Debug)]
struct Job {
    name: HubName,
    text: String,
    /// The keys that have wished for it.
    keys: Mutex<BTreeMap<Key, Force>>,
    progress: watch::Sender<Loading>,
    ended: watch::Sender<Option<Result<Member, NotLoaded>>>,
}

impl Job {
    fn is_for(&self, key: Key, force: Force) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).insert(key, force);
    }

    /// Whether no key is in force any more that has wished for it.
    fn is_for_nobody(&self) -> bool {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.values().all(|force| force.end().is_some())
    }

    /// Whether its download ends.
    fn stops(&self, draining: &CancellationToken) -> bool {
        draining.is_cancelled() || self.is_for_nobody()
    }
}

/// A model that may be fetched, for the server's door.
#[derive(Debug)]
struct Away {
    pulled: Arc<Pulled>,
    name: HubName,
    text: String,
}

impl Fetch for Away {
    fn name(&self) -> &str {
        &self.text
    }

    fn fetched(&self, wish: Wish, key: Force) -> Fetched<'_> {
        Box::pin(self.pulled.fetched(&self.name, &self.text, wish, key))
    }

    fn here(&self) -> Option<Member> {
        self.pulled.find(&self.text)
    }

    fn how_far(&self) -> Loading {
        let job = self.pulled.state().jobs.get(&self.text).cloned();
        job.map(|job| job.progress.borrow().clone()).unwrap_or_default()
    }
}

/// The models, for the server's door.
#[derive(Clone, Debug)]
pub struct AtTheDoor(pub Arc<Pulled>);

impl Fetcher for AtTheDoor {
    fn open(&self, name: &str) -> Option<Arc<dyn Fetch>> {
        let name = self.0.pulls.open(name)?;
        let text = name.to_string();
        Some(Arc::new(Away { pulled: self.0.clone(), name, text }))
    }

    fn members(&self) -> Vec<Member> {
        self.0.state().here.values().map(|here| here.member.clone()).collect()
    }
}

/// Loads a model that a request had fetched, and notes that it was used.
#[derive(Debug)]
struct Noting {
    loader: Arc<dyn Loader>,
    pulled: std::sync::Weak<Pulled>,
    entry: Entry,
}

impl Loader for Noting {
    fn loaded(&self, wish: Wish) -> Coming<'_> {
        if self.loader.now().is_none()
            && let Some(pulled) = self.pulled.upgrade()
        {
            let entry = self.entry.clone();
            tokio::task::spawn_blocking(move || pulled.pulls.touch(&entry));
        }
        self.loader.loaded(wish)
    }

    fn now(&self) -> Option<App> {
        self.loader.now()
    }

    fn keep(&self, key: Option<u64>, keep: Option<Duration>) {
        self.loader.keep(key, keep);
    }
}

/// A request that waits for a fetch.
struct Waiting<'p> {
    pulled: &'p Pulled,
    id: WishId,
    job: Arc<Job>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.pulled.state();
        if !state.order.forget(self.id, &self.job.text)
            && state.jobs.get(&self.job.text).is_some_and(|job| Arc::ptr_eq(job, &self.job))
        {
            state.jobs.remove(&self.job.text);
        }
    }
}

/// What a request finds.
enum Begun {
    Here(Box<Member>),
    Failed(NotLoaded),
    Job(Arc<Job>, WishId),
}

impl Pulled {
    /// The models of these options, if names are open to requests.
    ///
    /// # Errors
    /// The options contradict each other, or the lock cannot be read.
    pub async fn open(
        args: &ServeArgs,
        keys: Option<KeyRing>,
        shared: Option<Arc<Shared>>,
        stable: Arc<Stable>,
    ) -> Result<Option<Arc<Self>>> {
        let Some(base) = args.pulled.clone() else { return Ok(None) };
        let settings = base.model.hub.settings(&base.line.data_dir)?;
        ensure!(
            !settings.offline,
            "--allow-pull has models fetched, and --offline forbids that: leave one of them out"
        );
        ensure!(
            base.line.worker.is_empty() && base.line.lora.is_empty(),
            "--worker and --lora are of one model, and --allow-pull has others beside it: put them with their [[model]] into a file of options"
        );
        let budget = base.allow.budget.context("--allow-pull needs --pull-budget")?;
        let now = clock::unix_now();
        if !keys.as_ref().is_some_and(|keys| keys.now().have_loader(now)) {
            tracing::warn!(
                "no key may have models fetched: make one with `brigade key create NAME --may-load`"
            );
        }
        let free = memory::available_bytes().map(|free| free.saturating_sub(memory::RESERVE_BYTES));
        models::may_fetch();
        let pulls = Pulls::new(settings, base.allow.patterns.clone(), budget);
        let (state, opening) = (Mutex::default(), tokio::sync::Mutex::default());
        let pulled = Self { pulls, base, keys, shared, free, stable, state, opening };
        let pulled = Arc::new(pulled);
        for found in pulled.pulls.here()? {
            let held = pulled.pulls.hold(&found);
            let name = found.entry.name.clone();
            match pulled.adopt(found, held).await {
                Ok(_) => tracing::info!(model = name, "a model that requests may use"),
                Err(why) => tracing::warn!(model = name, ?why, "a model cannot be used"),
            }
        }
        Ok(Some(pulled))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // It is changed as a whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The states of models that are being fetched, and of fetches that failed lately.
    pub fn states(&self) -> Vec<ModelState> {
        let state = self.state();
        let fetching = state.jobs.values().map(|job| {
            let progress = job.progress.borrow().clone();
            (&job.text, "fetching", progress.total_bytes, progress.to_string())
        });
        let failed = state.failed.iter().filter(|(_, (at, _))| at.elapsed() < FAILED_FOR);
        let failed = failed.map(|(text, (_, why))| (text, "not fetched", 0, said(why)));
        let of = |(name, state, bytes, reason): (&String, &str, u64, String)| ModelState {
            name: name.clone(),
            state: state.to_owned(),
            bytes,
            reason: Some(reason),
            ..ModelState::default()
        };
        fetching.chain(failed).map(of).collect()
    }

    /// The model of this machine that is called so.
    fn find(&self, text: &str) -> Option<Member> {
        let state = self.state();
        let is_it = |here: &&Here| here.slot.served.model.text.serves(text);
        state.here.values().find(is_it).map(|here| here.member.clone())
    }

    async fn fetched(
        self: &Arc<Self>,
        name: &HubName,
        text: &str,
        wish: Wish,
        force: Force,
    ) -> Result<Member, NotLoaded> {
        let until = Instant::now() + wish.within;
        let (job, id) = match self.begin(name, text, wish.key, force) {
            Begun::Here(member) => return Ok(*member),
            Begun::Failed(why) => return Err(why),
            Begun::Job(job, id) => (job, id),
        };
        let _waiting = Waiting { pulled: self, id, job: job.clone() };
        self.go_on();
        let mut ended = job.ended.subscribe();
        tokio::select! {
            ended = ended.wait_for(Option::is_some) => match ended.ok().and_then(|e| e.clone()) {
                Some(result) => result,
                None => Err(NotLoaded::Fetching(job.progress.borrow().clone())),
            },
            () = self.stable.door.draining.cancelled() => {
                Err(NotLoaded::Never("the server is shutting down".to_owned()))
            }
            () = tokio::time::sleep_until(until.into()) => {
                Err(NotLoaded::Fetching(job.progress.borrow().clone()))
            }
        }
    }

    /// Joins the job that fetches a model, or begins one.
    fn begin(&self, name: &HubName, text: &str, key: Key, force: Force) -> Begun {
        if let Some(member) = self.find(text) {
            return Begun::Here(Box::new(member));
        }
        let mut state = self.state();
        if let Some((at, why)) = state.failed.get(text)
            && at.elapsed() < FAILED_FOR
        {
            return Begun::Failed(why.clone());
        }
        let id = state.order.want(text, key);
        let new = || {
            let progress = watch::Sender::new(Loading::step("waits for its turn to be fetched"));
            let (keys, ended) = (Mutex::default(), watch::Sender::default());
            Arc::new(Job { name: name.clone(), text: text.to_owned(), keys, progress, ended })
        };
        let job = state.jobs.entry(text.to_owned()).or_insert_with(new).clone();
        job.is_for(key, force);
        Begun::Job(job, id)
    }

    /// Begins the fetches whose turn it is.
    fn go_on(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            let Some(text) = state.order.next() else { return };
            match state.jobs.get(&text) {
                Some(job) => drop(tokio::spawn(self.clone().run(job.clone()))),
                None => state.order.ended(&text),
            }
        }
    }

    async fn run(self: Arc<Self>, job: Arc<Job>) {
        tracing::info!(model = job.text, "a request needs the model: it is fetched");
        let (pulled, of) = (self.clone(), job.clone());
        let fetching = tokio::task::spawn_blocking(move || pulled.fetch(&of));
        let result = tokio::select! {
            fetched = fetching => match fetched {
                Ok(Ok((found, held))) => self.adopt(found, held).await,
                Ok(Err(why)) => Err(why),
                Err(error) => Err(NotLoaded::Never(format!("the download ended: {error}"))),
            },
            // The thread ends when the hub says something or is silent for too long. Others need not wait for that.
            () = self.stopped(&job) => Err(NotLoaded::Fetching(job.progress.borrow().clone())),
        };
        {
            let mut state = self.state();
            state.order.ended(&job.text);
            state.jobs.remove(&job.text);
            models::fetched(outcome(&result));
            if let Err(why) = &result {
                tracing::warn!(model = job.text, why = said(why), "a model was not fetched");
                state.note_failure(&job.text, why);
            }
        }
        job.ended.send_replace(Some(result));
        self.go_on();
    }

    /// Waits until nobody wants a job's model any more, and a download that hears of it has had the time to end.
    async fn stopped(&self, job: &Job) {
        while !job.stops(&self.stable.door.draining) {
            tokio::time::sleep(STOP_LOOK_EVERY).await;
        }
        tokio::time::sleep(STOPS_WITHIN).await;
    }

    /// Fetches a model, on a thread that may block.
    fn fetch(&self, job: &Job) -> Result<(Found, Option<File>), NotLoaded> {
        let draining = self.stable.door.draining.clone();
        let watcher = Watcher { job, draining, begun: Mutex::default() };
        let how_far = || job.progress.borrow().clone();
        let told = |error: HubError| told(error, how_far());
        let plan = self.pulls.plan(&job.name, &watcher).map_err(told)?;
        self.check_memory(&plan.name, plan.size)?;
        let used = |entry: &Entry| self.last_used(entry);
        let let_go = |name: &str| self.let_go(name);
        let _room = self.pulls.make_room(&plan, &used, &let_go).map_err(told)?;
        self.pulls.fetch(&plan, &watcher).map_err(told)
    }

    /// Refuses a model for which this machine has too little memory, before it is fetched.
    fn check_memory(&self, name: &str, size: u64) -> Result<(), NotLoaded> {
        let budget = self.stable.budget();
        if self.shared.is_none() && size > budget {
            return Err(NotLoaded::Refused(format!(
                "{name} has {size} bytes, and models that are loaded on demand have {budget} bytes of memory here: ask for a smaller quantisation"
            )));
        }
        Ok(())
    }

    /// Whether a model is loaded, and when it was last used: nanoseconds since 1970.
    fn last_used(&self, entry: &Entry) -> (bool, u64) {
        let slot = self.slot(&entry.name);
        let noted = entry.last_used.saturating_mul(1_000_000_000);
        slot.map_or((false, noted), |slot| (slot.loaded().is_some(), noted.max(slot.last_used())))
    }

    fn slot(&self, name: &str) -> Option<Arc<Slot>> {
        self.state().here.get(name).map(|here| here.slot.clone())
    }

    /// Whether a model may be deleted: it is idle, nobody waits for it, and no order keeps it. Then it is no longer here.
    fn let_go(&self, name: &str) -> bool {
        let Some(slot) = self.slot(name) else { return true };
        if slot.standing().pinned {
            return false;
        }
        if slot.loaded().is_some() {
            let why = "another model needs its room on the disk";
            Handle::current().block_on(self.stable.unload_idle(&slot, why));
        }
        let mut state = self.state();
        let goes = self.stable.remove(&slot);
        if goes {
            state.here.remove(name);
        }
        goes
    }

    /// Opens a model that is on this machine.
    async fn adopt(
        self: &Arc<Self>,
        found: Found,
        held: Option<File>,
    ) -> Result<Member, NotLoaded> {
        let _alone = self.opening.lock().await;
        let entry = found.entry.clone();
        if let Some(member) = self.renamed(&entry).await? {
            return Ok(member);
        }
        let opened = self.try_open(found).await;
        let slot = opened.map_err(|error| NotLoaded::Never(format!("{error:#}")))?;
        let (name, pulled) = (entry.name.clone(), Arc::downgrade(self));
        let loader = Noting { loader: self.stable.loader(slot.clone()), pulled, entry };
        let member = Member::on_demand(slot.asleep.clone(), Arc::new(loader)).for_loaders();
        let here = Here { slot, member: member.clone(), _held: held };
        self.state().here.insert(name, here);
        Ok(member)
    }

    /// The model of an entry, if it is here with all names of it. One that has got a name since is let go, to be opened anew
    /// with it.
    ///
    /// # Errors
    /// The model is in use: it gets the name when it is idle.
    async fn renamed(&self, entry: &Entry) -> Result<Option<Member>, NotLoaded> {
        let here = self.state().here.get(&entry.name).map(|h| (h.slot.clone(), h.member.clone()));
        let Some((slot, member)) = here else { return Ok(None) };
        if names(entry).iter().all(|name| slot.served.model.text.serves(name)) {
            return Ok(Some(member));
        }
        self.stable.unload_idle(&slot, "it is opened anew with another name").await;
        let mut state = self.state();
        if !self.stable.remove(&slot) {
            return Err(NotLoaded::Fetching(Loading::step("waits until the model is idle")));
        }
        state.here.remove(&entry.name);
        Ok(None)
    }

    async fn try_open(&self, found: Found) -> Result<Arc<Slot>> {
        let mut args = (*self.base).clone();
        args.served_model_name = names(&found.entry);
        args.model.model = None;
        args.model.found = Some(found);
        args.load = Load::Demand;
        let served = Served::of_folder(args, self.keys.clone(), self.shared.clone(), self.free);
        self.stable.add(served.await?)
    }
}

impl State {
    fn note_failure(&mut self, text: &str, why: &NotLoaded) {
        self.failed.retain(|_, (at, _)| at.elapsed() < FAILED_FOR);
        // One that was stopped, or found no room, may be tried again at once.
        if !matches!(why, NotLoaded::Fetching(_) | NotLoaded::NoRoom)
            && self.failed.len() < MAX_FAILED
        {
            self.failed.insert(text.to_owned(), (Instant::now(), why.clone()));
        }
    }
}

/// What requests are told of an error.
fn told(error: HubError, how_far: Loading) -> NotLoaded {
    let text = error.to_string();
    match error {
        HubError::NoRepo { what, .. } => {
            NotLoaded::Missing(format!("the hub has no model {what} that this server may read"))
        }
        HubError::Gated { repo, .. } => NotLoaded::Missing(format!(
            "{repo} is gated at the hub, and this server's operator has not accepted its terms: ask for it, or for another model"
        )),
        HubError::NoQuant { .. } | HubError::Incomplete { .. } | HubError::Name { .. } => {
            NotLoaded::Missing(text)
        }
        HubError::OverBudget { .. } => NotLoaded::Refused(text),
        HubError::BudgetInUse { .. } => {
            tracing::warn!(why = text, "there is no room on the disk for a model");
            NotLoaded::NoRoom
        }
        HubError::Stopped { .. } => NotLoaded::Fetching(how_far),
        _ => NotLoaded::Never(text),
    }
}

/// How a fetch ended, to be counted.
fn outcome(result: &Result<Member, NotLoaded>) -> Outcome {
    match result {
        Ok(_) => Outcome::Done,
        Err(NotLoaded::Fetching(_) | NotLoaded::NoRoom) => Outcome::Stopped,
        Err(_) => Outcome::Failed,
    }
}

/// The reason in words, for operators.
fn said(why: &NotLoaded) -> String {
    match why {
        NotLoaded::Fetching(progress) | NotLoaded::NotYet(progress) => {
            format!("it was stopped: {progress}")
        }
        NotLoaded::NoRoom => {
            "the models that would have to be deleted for it are in use".to_owned()
        }
        NotLoaded::Missing(why) | NotLoaded::Refused(why) | NotLoaded::Never(why) => why.clone(),
    }
}

/// The bytes of a download.
#[derive(Clone, Copy)]
struct Flow {
    /// When the first ones came.
    since: Instant,
    /// How many were there before, and are there now.
    before: u64,
    now: u64,
}

/// Tells the requests that wait how far a download is.
struct Watcher<'j> {
    job: &'j Job,
    draining: CancellationToken,
    begun: Mutex<Option<Flow>>,
}

impl Watch for Watcher<'_> {
    fn say(&self, text: &str) {
        tracing::info!(model = self.job.text, "{text}");
    }

    fn show(&self, _what: &str, done: u64, total: u64) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Flow { since: Instant::now(), before: done, now: done };
        let flow = begun.get_or_insert_with(new);
        models::fetched_bytes(done.saturating_sub(flow.now));
        flow.now = done;
        let took = flow.since.elapsed();
        let rate = done.saturating_sub(flow.before) as f64 / took.as_secs_f64().max(1e-9);
        let rate = Some(rate as u64).filter(|rate| took >= MEASURED_AFTER && *rate > 0);
        self.job.progress.send_replace(Loading {
            what: "fetching".to_owned(),
            done_bytes: done,
            total_bytes: total,
            bytes_per_second: rate,
            seconds_left: rate.map(|rate| total.saturating_sub(done) / rate),
        });
    }

    fn stops(&self) -> bool {
        self.job.stops(&self.draining)
    }
}

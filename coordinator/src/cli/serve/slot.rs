//! One of a server's models that are loaded on demand: its line while it has one, and its orders.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use brigade_cluster::SeatId;
use brigade_gguf::{FileState, TensorFiles};
use brigade_http::{App, Door};
use brigade_line::admin::ModelState;
use brigade_line::handle::{Engine, Status};
use brigade_line::health::Loading;
use brigade_line::measured::models;
use tokio::sync::watch;

use super::app_without_line;
use super::grants::Taken;
use super::lines::{Line, Served};
use super::patience::Patience;
use super::standing::{Quarantine, Standing, Standings};
use super::turns::{Key, Sight, Stage};

/// A model with its state.
#[derive(Debug)]
pub struct Slot {
    /// The model's index among the others.
    pub at: usize,
    /// The model and its options.
    pub served: Served,
    /// The model without a line.
    pub asleep: App,
    loaded: Mutex<Option<Loaded>>,
    /// Whether its line is about to be started, when others have ended.
    pub comes: AtomicBool,
    /// The lock for beginning or ending its line.
    pub turn: Arc<tokio::sync::Mutex<()>>,
    /// Loads since the last one that came up.
    pub failed: AtomicU32,
    /// Its orders and quarantine.
    standing: Mutex<Standing>,
    /// The result of the last load. It changes also when the model takes requests again.
    pub tries: watch::Sender<Tried>,
    /// Requests to it are to go on that the server before this one had begun.
    pub goes_on: bool,
    /// Whether the model was removed.
    retired: AtomicBool,
    /// When it was last used: nanoseconds since 1970. 0: not by this process.
    used: AtomicU64,
}

/// The results of loads.
#[derive(Clone, Debug, Default)]
pub struct Tried {
    /// How many there were.
    pub n: u64,
    /// Why the last one failed.
    pub failed: Option<String>,
}

/// A model with its line.
#[derive(Debug)]
pub struct Loaded {
    /// The line of the model.
    pub line: Line,
    /// The handlers' state for it.
    pub app: App,
    /// The line's seat at the pool, if it has one.
    pub seat: Option<SeatId>,
    begun: Instant,
    /// How its load gets on.
    patience: Patience,
    /// How long it took until it was up; `None`: it has not been yet.
    took: Option<Duration>,
    /// When it was last in use.
    used: Instant,
    /// Keys that have used it.
    keys: BTreeSet<Key>,
    /// How long it stays loaded when idle, by a client's wish.
    keep: Option<Duration>,
    /// Its part of this machine's memory, until its end.
    memory: Taken,
}

impl Loaded {
    /// A line that has begun.
    pub fn new(line: Line, app: App, seat: Option<SeatId>, memory: Taken) -> Self {
        let now = Instant::now();
        let (keys, keep, patience) = (BTreeSet::new(), None, Patience::new(now));
        Self { line, app, seat, begun: now, patience, took: None, used: now, keys, keep, memory }
    }

    /// Whether a request or another task uses it.
    pub fn is_used(&self) -> bool {
        Arc::strong_count(&self.app.in_use) > 1
    }

    /// Whether it is idle, and has been loaded for at least as long as its loading took.
    pub fn may_go(&self) -> bool {
        !self.is_used() && self.took.is_none_or(|took| self.begun.elapsed() >= 2 * took)
    }

    /// Ends its line; then its memory is free.
    ///
    /// # Errors
    /// As [`Line::end`].
    pub async fn end(self) -> anyhow::Result<()> {
        let Self { line, memory, .. } = self;
        let ended = line.end().await;
        drop(memory);
        ended
    }

    /// Whether its line has been up.
    pub fn is_up(&self) -> bool {
        self.took.is_some() || matches!(self.app.engine.status(), Status::Ready(_))
    }

    /// Whether its line has ended by itself.
    pub fn is_broken(&self) -> bool {
        matches!(self.app.engine.status(), Status::Failed { .. } | Status::Stopping)
    }

    /// Why its load is given up: it has stood still for longer than `patience`. `None`: it is up, or gets on.
    pub fn stands_still(&mut self, now: Instant, patience: Duration) -> Option<String> {
        self.look(now);
        if self.took.is_some() || self.is_broken() {
            return None;
        }
        let loading = how_far(&self.app);
        self.patience.see(now, &loading.what, loading.done_bytes);
        self.patience.is_over(now, patience).then(|| {
            let why = match self.app.engine.status() {
                Status::Down { reason, .. } => format!("{loading} ({reason})"),
                _ => loading.to_string(),
            };
            format!("its load stood still for {} s at: {why}", patience.as_secs())
        })
    }

    /// Updates the times: when it was loaded, and when it was last in use.
    fn look(&mut self, now: Instant) {
        if self.took.is_none() && matches!(self.app.engine.status(), Status::Ready(_)) {
            let took = now - self.begun;
            models::loaded(self.app.text.name(), took);
            (self.took, self.used) = (Some(took), now);
        }
        if self.is_used() {
            self.used = now;
        }
    }
}

impl Slot {
    /// A model that is not loaded, at this place among the others.
    ///
    /// # Errors
    /// The model's journal cannot be read.
    pub fn new(
        at: usize,
        served: Served,
        door: &Arc<Door>,
        standings: &Standings,
    ) -> anyhow::Result<Self> {
        let standing = standing_of(standings, &served);
        models::on_demand(served.model.name());
        Ok(Self {
            at,
            goes_on: served.has_requests()?,
            asleep: app_without_line(&served.model, served.args(), door.clone()),
            served,
            loaded: Mutex::default(),
            comes: AtomicBool::default(),
            turn: Arc::default(),
            failed: AtomicU32::new(0),
            standing: Mutex::new(standing),
            tries: watch::Sender::default(),
            retired: AtomicBool::default(),
            used: AtomicU64::new(0),
        })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        self.served.model.name()
    }

    /// Marks the model as removed: it is unloaded when it is idle, and then forgotten.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Relaxed);
    }

    /// Whether the model was removed, so that no request asks for it any more.
    pub fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Its line, if it has one.
    pub fn loaded(&self) -> MutexGuard<'_, Option<Loaded>> {
        // A panic elsewhere leaves a whole line behind, or none.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its orders and quarantine, locked.
    pub fn standing(&self) -> MutexGuard<'_, Standing> {
        // It is changed as a whole.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the requests that wait for it.
    pub fn tell(&self) {
        self.tries.send_modify(|_| ());
    }

    /// The seat of its line at the pool, if it has one, and when the model was last used.
    pub fn seat(&self, may_go: bool) -> Option<(Instant, SeatId)> {
        let loaded = self.loaded();
        let loaded = loaded.as_ref()?;
        let stays = may_go && (!loaded.may_go() || self.standing().pinned);
        Some((loaded.used, loaded.seat?)).filter(|_| !stays)
    }

    /// The model's state for decisions.
    pub fn sight(&self, now: Instant) -> Sight {
        let mut loaded = self.loaded();
        let (stays, swap_after) = (self.standing().pinned, self.served.args().swap_after);
        let away = Sight { stage: Stage::Away, is_used: false, used: now, stays, swap_after };
        let Some(loaded) = loaded.as_mut() else {
            let comes = self.comes.load(Ordering::Relaxed);
            return Sight {
                is_used: comes,
                stage: if comes { Stage::Coming } else { Stage::Away },
                ..away
            };
        };
        loaded.look(now);
        let up = |took| Stage::Up { since: loaded.begun + took, took };
        let stage = loaded.took.map_or(Stage::Coming, up);
        Sight { stage, is_used: loaded.is_used(), used: loaded.used, ..away }
    }

    /// When it was last used: nanoseconds since 1970. 0: not by this process.
    pub fn last_used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Notes when its line, which ends, was last used.
    pub fn is_left(&self, loaded: &Loaded) {
        let then = SystemTime::now() - loaded.used.elapsed();
        let then = then.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        self.used.store(u64::try_from(then).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// A request of this key uses it.
    pub fn is_used_by(&self, key: Key) {
        if let Some(loaded) = self.loaded().as_mut() {
            loaded.look(Instant::now());
            loaded.keys.insert(key);
        }
    }

    /// Notes the wish of a client with this key: how long it stays when idle. It counts where no other key has used
    /// it.
    pub fn keep(&self, key: Key, keep: Option<Duration>) {
        if let Some(loaded) = self.loaded().as_mut()
            && loaded.keys.iter().all(|other| other.is_none() || *other == key)
        {
            loaded.keep = keep;
        }
    }

    /// Whether it was idle for the time that its options or its clients set.
    pub fn is_past_its_time(&self) -> bool {
        let mut loaded = self.loaded();
        let Some(loaded) = loaded.as_mut() else { return false };
        loaded.look(Instant::now());
        // Another key's wish counts only while that key alone uses it.
        let own = loaded.keep.filter(|_| loaded.keys.iter().flatten().count() <= 1);
        let after = own.into_iter().chain(self.served.args().unload_after).min();
        let is_past = after.is_some_and(|after| loaded.used.elapsed() >= after);
        if self.is_retired() {
            return !loaded.is_used();
        }
        is_past && loaded.may_go() && !self.standing().pinned
    }

    /// How it is, for operators.
    pub fn state(&self) -> ModelState {
        let loaded = self.loaded();
        let state = match loaded.as_ref().map(|loaded| loaded.app.engine.status()) {
            None => "unloaded",
            Some(Status::Ready(_)) => "loaded",
            Some(_) => "loading",
        };
        let idle = loaded.as_ref().filter(|loaded| !loaded.is_used());
        let Standing { pinned, loaded: ordered, quarantine } = self.standing().clone();
        let why = match loaded.as_ref() {
            None => self.tries.borrow().failed.clone(),
            Some(loaded) if state == "loading" => Some(how_far(&loaded.app).to_string()),
            Some(_) => None,
        };
        let state = if quarantine.is_some() { "quarantined" } else { state };
        ModelState {
            name: self.name().to_owned(),
            state: state.to_owned(),
            pinned,
            ordered,
            reason: quarantine.map(|quarantine| quarantine.reason).or(why),
            bytes: self.served.host_memory(),
            idle_seconds: idle.map(|loaded| loaded.used.elapsed().as_secs()),
        }
    }

    /// The files that a quarantine is about.
    pub fn quarantine(&self, reason: &str) -> Quarantine {
        Quarantine { reason: reason.to_owned(), files: files_of(&self.served) }
    }
}

/// The files of a model, as far as a change of them is noticed.
fn files_of(served: &Served) -> String {
    let states = served.model.files.iter().flat_map(TensorFiles::states);
    let stamp =
        |(_, state): (&Path, &FileState)| format!(" {} bytes of {}", state.nbytes, state.mtime_ns);
    format!("{}{}", served.model.identity(), states.map(stamp).collect::<String>())
}

/// The orders and the quarantine of a model. A quarantine holds only for the files that it was made for.
pub fn standing_of(standings: &Standings, served: &Served) -> Standing {
    let Standing { quarantine, .. } = standings.of(served.model.name());
    let quarantine = quarantine.filter(|quarantine| quarantine.files == files_of(served));
    Standing { quarantine, ..standings.of(served.model.name()) }
}

/// How far a line is that is not up.
pub fn how_far(app: &App) -> Loading {
    match app.engine.status() {
        Status::Loading(loading) => loading,
        Status::Down { next: Some(loading), .. } => loading,
        _ => Loading::default(),
    }
}

/// Waits until requests can run.
pub async fn up(engine: &Engine) -> Result<(), String> {
    let mut status = engine.watch();
    loop {
        match &*status.borrow_and_update() {
            Status::Ready(_) => return Ok(()),
            Status::Failed { reason } => return Err(reason.clone()),
            Status::Stopping => return Err("it was unloaded before it was up".to_owned()),
            Status::Loading(_) | Status::Down { .. } => {}
        }
        if status.changed().await.is_err() {
            return Err("its driver has ended".to_owned());
        }
    }
}

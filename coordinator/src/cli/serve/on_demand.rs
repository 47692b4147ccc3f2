//! Models that are loaded when a request needs them, and go when another one needs their memory.
//!
//! One line is begun or ended at a time, in the order of the requests that want it. Who uses a model has a copy of its
//! [`App`]: a model of which nobody has one is idle, and may go.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brigade_cluster::{Pool, Seat, SeatId};
use brigade_gguf::{FileState, TensorFiles};
use brigade_http::{App, Coming, Door, Loader, MODEL_WITHIN, NotLoaded, Wish};
use brigade_line::admin::{ModelState, Refused};
use brigade_line::handle::{Engine, Status};
use brigade_line::health::Loading;
use tokio::time::timeout_at;

use super::app_without_line;
use super::lines::{Line, Served};
use super::standing::{Quarantine, Standing, Standings};

/// What an operator wants, or the server itself.
const OF_NO_KEY: Wish = Wish { key: None, within: MODEL_WITHIN };

/// How often models that are in use are looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// A model whose line has failed so often, one load after the other, is loaded no more, until an operator wants it.
const FAILURES: u32 = 3;

/// How often models are looked at that nobody has used for long.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// The models of a server that are loaded on demand.
#[derive(Debug)]
pub struct Stable {
    slots: Vec<Slot>,
    /// Memory of this machine for all of them.
    budget: u64,
    door: Door,
    /// What holds of them after a restart.
    standings: Standings,
    /// Whoever has it begins and ends lines.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Slot {
    served: Served,
    /// The model without a line.
    asleep: App,
    loaded: Mutex<Option<Loaded>>,
    /// Loads since the last one that came up.
    failed: AtomicU32,
    /// What holds of it now.
    standing: Mutex<Standing>,
    /// Requests to it are to go on that the server before this one had begun.
    goes_on: bool,
}

#[derive(Debug)]
struct Loaded {
    line: Line,
    app: App,
    begun: Instant,
    /// How long it took until it was up; `None`: it has not been yet.
    took: Option<Duration>,
    /// When it was last in use.
    used: Instant,
    /// Its place at the pool, if it has one.
    seat: Option<SeatId>,
}

/// What a model gets when it is its turn.
enum Room {
    /// Memory of this machine, or workers of the pool.
    There(Option<Arc<Seat>>),
    /// Nothing, whichever models went; the reason.
    Lacks(String),
}

impl Loaded {
    /// Whether nobody uses it, and it has been there as long as its loading took.
    fn may_go(&self) -> bool {
        let stayed = self.took.is_none_or(|took| self.begun.elapsed() >= 2 * took);
        Arc::strong_count(&self.app.in_use) == 1 && stayed
    }
}

/// Whether a line was begun.
enum Begun {
    Yes(Box<App>),
    /// It has to wait; the reason.
    Lacks(String),
}

/// One of a stable's models, for the server's door.
#[derive(Debug)]
struct Stall(Arc<Stable>, usize);

impl Loader for Stall {
    fn loaded(&self, wish: Wish) -> Coming<'_> {
        Box::pin(self.0.loaded(self.1, wish))
    }

    fn now(&self) -> Option<App> {
        self.0.now(self.1)
    }
}

impl Stable {
    /// Models that share so much memory of this machine. None is loaded.
    ///
    /// # Errors
    /// A journal of theirs cannot be read.
    pub fn new(
        all: Vec<Served>,
        budget: u64,
        door: Door,
        standings: Standings,
    ) -> anyhow::Result<Arc<Self>> {
        let slot = |served: Served| {
            let standing = standing_of(&standings, &served);
            let goes_on = served.has_requests()?;
            let asleep = app_without_line(&served.model, served.args(), door.clone());
            Ok::<_, anyhow::Error>(Slot {
                served,
                asleep,
                loaded: Mutex::default(),
                failed: AtomicU32::new(0),
                standing: Mutex::new(standing),
                goes_on,
            })
        };
        let slots = all.into_iter().map(slot).collect::<Result<_, _>>()?;
        let turn = tokio::sync::Mutex::default();
        let stable = Arc::new(Self { slots, budget, door, standings, turn });
        tokio::spawn(stable.clone().sweep());
        tokio::spawn(stable.clone().load_first());
        Ok(stable)
    }

    /// Each model as it is while it has no line, and who loads it.
    pub fn members(self: &Arc<Self>) -> impl Iterator<Item = (App, Arc<dyn Loader>)> {
        (0..self.slots.len()).map(|at| {
            let loader: Arc<dyn Loader> = Arc::new(Stall(self.clone(), at));
            (self.slots[at].asleep.clone(), loader)
        })
    }

    /// Ends all lines beside each other.
    pub async fn end(&self) {
        let _turn = self.turn.lock().await;
        let mut ending = tokio::task::JoinSet::new();
        for slot in &self.slots {
            if let Some(loaded) = slot.loaded().take() {
                ending.spawn(loaded.line.end());
            }
        }
        while let Some(ended) = ending.join_next().await {
            if let Ok(Err(error)) = ended {
                tracing::error!(error = format!("{error:#}"), "the end of a line");
            }
        }
    }

    /// Who lends workers to its models, if somebody does.
    pub fn pool(&self) -> Option<&Pool> {
        self.slots.iter().find_map(|slot| Some(&slot.served.shared.as_ref()?.pool))
    }

    /// Which models there are, and which are loaded.
    pub fn states(&self) -> Vec<ModelState> {
        self.slots.iter().map(Slot::state).collect()
    }

    /// The model called so.
    ///
    /// # Errors
    /// There is none, and which there are.
    pub fn find(&self, model: &str) -> Result<usize, Refused> {
        let name = |slot: &Slot| slot.served.model.name().to_owned();
        self.slots.iter().position(|slot| name(slot) == model).ok_or_else(|| {
            let all: Vec<String> = self.slots.iter().map(name).collect();
            Refused(format!(
                "no model that is loaded on demand is called {model}: there are {}",
                all.join(", ")
            ))
        })
    }

    /// Loads models that have streams which go on, and then those that operators want loaded, one after the other.
    async fn load_first(self: Arc<Self>) {
        let of = |wanted: fn(&Slot) -> bool| {
            let wanted = self.slots.iter().enumerate().filter(move |(_, slot)| wanted(slot));
            wanted.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let ordered = of(|slot| !slot.goes_on && slot.standing().loaded);
        for at in of(|slot| slot.goes_on).into_iter().chain(ordered) {
            // Its reason is in the log, and in what is said of the model.
            drop(self.loaded(at, OF_NO_KEY).await);
        }
    }

    /// Loads a model, and waits until it is up, also one that was not to be loaded again. It is loaded after a restart too.
    ///
    /// # Errors
    /// It is not up within [`MODEL_WITHIN`], or never; the order cannot be kept.
    pub async fn load(&self, at: usize) -> Result<String, Refused> {
        let name = self.slots[at].served.model.name();
        self.slots[at].failed.store(0, Ordering::Relaxed);
        self.order(at, |standing| (standing.loaded, standing.quarantine) = (true, None))?;
        match self.loaded(at, OF_NO_KEY).await {
            Ok(_) => Ok(format!("{name} is loaded")),
            Err(NotLoaded::NotYet(loading)) => {
                Err(Refused(format!("{name} is being loaded: {loading}")))
            }
            Err(NotLoaded::NoRoom) => Err(Refused(format!(
                "there is no room for {name}: the models that are loaded are in use, or stay by order"
            ))),
            Err(NotLoaded::Never(reason)) => Err(Refused(reason)),
        }
    }

    /// Unloads a model that nobody uses. It is loaded again when a request needs it.
    ///
    /// # Errors
    /// Somebody does; the order cannot be kept.
    pub async fn unload(&self, at: usize) -> Result<String, Refused> {
        let _turn = self.turn.lock().await;
        let name = self.slots[at].served.model.name();
        let idle = |loaded: &mut Loaded| Arc::strong_count(&loaded.app.in_use) == 1;
        let (idle, is_used) = {
            let mut loaded = self.slots[at].loaded();
            (loaded.take_if(idle), loaded.is_some())
        };
        if is_used {
            return Err(Refused(format!(
                "{name} is in use: ask again when its answers have ended"
            )));
        }
        let was_there = idle.is_some();
        self.end_line(at, idle, "an operator wants it").await;
        self.order(at, |standing| standing.loaded = false)?;
        Ok(format!("{name} {}", if was_there { "is unloaded" } else { "was not loaded" }))
    }

    /// Whether a model stays once it is loaded.
    ///
    /// # Errors
    /// The order cannot be kept.
    pub fn pin(&self, at: usize, stays: bool) -> Result<String, Refused> {
        self.order(at, |standing| standing.pinned = stays)?;
        let what = if stays { "stays once it is loaded" } else { "may go when nobody uses it" };
        let until = if self.standings.are_kept() { "" } else { ", until the server ends" };
        Ok(format!("{} {what}{until}", self.slots[at].served.model.name()))
    }

    /// Changes what holds of a model, by order.
    fn order(&self, at: usize, change: impl FnOnce(&mut Standing)) -> Result<(), Refused> {
        self.change(at, change)
            .map_err(|error| Refused(format!("the order cannot be kept: {error}")))
    }

    fn change(&self, at: usize, change: impl FnOnce(&mut Standing)) -> io::Result<()> {
        let slot = &self.slots[at];
        self.standings.change(slot.served.model.name(), change)?;
        *slot.standing() = standing_of(&self.standings, &slot.served);
        Ok(())
    }

    /// A model's line could not be begun, or did not come up.
    fn failed(&self, at: usize, reason: String) -> NotLoaded {
        let slot = &self.slots[at];
        if slot.failed.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES {
            let files = files_of(&slot.served);
            let quarantine = Some(Quarantine { reason: reason.clone(), files });
            let kept = self.change(at, |standing| standing.quarantine = quarantine.clone());
            if let Err(error) = kept {
                tracing::error!(%error, "that a model is not to be loaded again holds until a restart only");
                slot.standing().quarantine = quarantine;
            }
        }
        NotLoaded::Never(reason)
    }

    fn now(&self, at: usize) -> Option<App> {
        self.slots[at].loaded().as_ref().map(|loaded| loaded.app.clone())
    }

    async fn loaded(&self, at: usize, wish: Wish) -> Result<App, NotLoaded> {
        let until = Instant::now() + wish.within;
        let app = match self.now(at) {
            Some(app) => app,
            None => self.begin(at, until).await?,
        };
        self.until_up(at, app, until).await
    }

    /// Begins a model's line, when it is its turn and there is room.
    async fn begin(&self, at: usize, until: Instant) -> Result<App, NotLoaded> {
        let pool = self.slots[at].served.shared.as_ref().map(|shared| &shared.pool);
        let mut changes = pool.map(Pool::changes);
        loop {
            match self.begin_now(at, until).await? {
                Begun::Yes(app) => return Ok(*app),
                // Others may have their turn.
                Begun::Lacks(why) => {
                    let changed = async {
                        match &mut changes {
                            // The pool lives as long as its server.
                            Some(changes) => drop(changes.changed().await),
                            None => std::future::pending().await,
                        }
                    };
                    let waits =
                        NotLoaded::NotYet(Loading::step(format!("waits for workers: {why}")));
                    timeout_at(until.into(), changed).await.map_err(|_| waits)?;
                }
            }
        }
    }

    async fn begin_now(&self, at: usize, until: Instant) -> Result<Begun, NotLoaded> {
        let waits = NotLoaded::NotYet(Loading::step("waits for the load of another model"));
        let _turn = timeout_at(until.into(), self.turn.lock()).await.map_err(|_| waits)?;
        if let Some(app) = self.now(at) {
            return Ok(Begun::Yes(Box::new(app)));
        }
        if self.door.draining.is_cancelled() {
            return Err(NotLoaded::Never("the server is shutting down".to_owned()));
        }
        let slot = &self.slots[at];
        if let Some(Quarantine { reason, .. }) = &slot.standing().quarantine {
            return Err(NotLoaded::Never(format!(
                "its line has failed {FAILURES} times, one after the other ({reason}): an operator has it loaded again with `brigade cluster load {}`, and a change of its file does",
                slot.served.model.name()
            )));
        }
        let seat = match self.make_room(at, until).await? {
            Room::There(seat) => seat,
            Room::Lacks(why) => return Ok(Begun::Lacks(why)),
        };
        tracing::info!(model = slot.served.model.name(), "a request needs the model: it is loaded");
        let seat_id = seat.as_ref().map(|seat| seat.id());
        let started = slot.served.start(seat).await;
        let mut line = started.map_err(|error| self.failed(at, format!("{error:#}")))?;
        line.open_admin_socket(&line.session.ends());
        let app = line.open(self.door.clone());
        let now = Instant::now();
        let (app_of, seat) = (app.clone(), seat_id);
        let loaded = Loaded { line, app: app_of, begun: now, took: None, used: now, seat };
        *slot.loaded() = Some(loaded);
        Ok(Begun::Yes(Box::new(app)))
    }

    /// Ends lines of idle models until there is room for this one: first what was used least recently.
    async fn make_room(&self, at: usize, until: Instant) -> Result<Room, NotLoaded> {
        if let Some(shared) = &self.slots[at].served.shared {
            return self.borrow(at, &shared.pool, until).await;
        }
        let wants = self.slots[at].served.host_memory();
        if wants > self.budget {
            let (name, budget) = (self.slots[at].served.model.name(), self.budget);
            return Err(NotLoaded::Never(format!(
                "{name} needs {wants} bytes, and the models that are loaded on demand have {budget}: give it fewer with \
                 memory = SIZE, or workers on other machines"
            )));
        }
        loop {
            let has = |slot: &&Slot| slot.loaded().is_some();
            let taken: u64 = self.slots.iter().filter(has).map(|s| s.served.host_memory()).sum();
            if taken.saturating_add(wants) <= self.budget {
                return Ok(Room::There(None));
            }
            match self.longest_idle() {
                Some(idle) => self.unload_idle(idle, "another model needs its memory").await,
                None if Instant::now() >= until => return Err(NotLoaded::NoRoom),
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Takes workers of the pool, and ends lines of idle models until those that it needs are free: first what was used
    /// least recently. Nothing is ended in vain.
    async fn borrow(&self, at: usize, pool: &Pool, until: Instant) -> Result<Room, NotLoaded> {
        let demand = self.slots[at].served.demand();
        let demand = demand.map_err(|error| self.failed(at, format!("{error:#}")))?;
        loop {
            let lacking = match pool.reserve(demand.clone()) {
                Ok(seat) => return Ok(Room::There(Some(seat))),
                Err(lacking) => lacking,
            };
            if pool.in_the_way(&demand, &self.seats(false)).is_err() {
                return Ok(Room::Lacks(lacking));
            }
            match pool.in_the_way(&demand, &self.seats(true)) {
                Ok(go) => self.give_up(&go, "another model needs its workers").await,
                Err(_) if Instant::now() >= until => return Err(NotLoaded::NoRoom),
                Err(_) => tokio::time::sleep(LOOK_EVERY).await,
            }
        }
    }

    /// Ends the lines with these places at the pool, if nobody has come for them. Whoever calls this has the turn.
    async fn give_up(&self, seats: &[SeatId], why: &str) {
        for (at, slot) in self.slots.iter().enumerate() {
            let seat = slot.loaded().as_ref().and_then(|loaded| loaded.seat);
            if seat.is_some_and(|seat| seats.contains(&seat)) {
                self.unload_idle(at, why).await;
            }
        }
    }

    /// Places of models at the pool, the least recently used first: of those that may go, or of all.
    fn seats(&self, may_go: bool) -> Vec<SeatId> {
        let of = |slot: &Slot| {
            let loaded = slot.loaded();
            let loaded = loaded.as_ref()?;
            let stays = may_go && (!loaded.may_go() || slot.stays());
            Some((loaded.used, loaded.seat?)).filter(|_| !stays)
        };
        let mut seats: Vec<_> = self.slots.iter().filter_map(of).collect();
        seats.sort();
        seats.into_iter().map(|(_, seat)| seat).collect()
    }

    /// The model that may go and was used least recently.
    fn longest_idle(&self) -> Option<usize> {
        let used = |(at, slot): (usize, &Slot)| {
            let loaded = slot.loaded();
            let loaded = loaded.as_ref().filter(|loaded| loaded.may_go() && !slot.stays())?;
            // What takes no memory of this machine makes no room.
            (slot.served.host_memory() > 0).then_some((loaded.used, at))
        };
        self.slots.iter().enumerate().filter_map(used).min().map(|(_, at)| at)
    }

    /// Ends a model's line, unless somebody has come for it. Whoever calls this has the turn.
    async fn unload_idle(&self, at: usize, why: &str) {
        let idle = self.slots[at].loaded().take_if(|loaded| loaded.may_go());
        self.end_line(at, idle, why).await;
    }

    async fn end_line(&self, at: usize, loaded: Option<Loaded>, why: &str) {
        let Some(loaded) = loaded else { return };
        tracing::info!(model = self.slots[at].served.model.name(), why, "the model is unloaded");
        if let Err(error) = loaded.line.end().await {
            tracing::error!(error = format!("{error:#}"), "the end of a line");
        }
    }

    /// Waits for a model's line.
    async fn until_up(&self, at: usize, app: App, until: Instant) -> Result<App, NotLoaded> {
        match timeout_at(until.into(), up(&app.engine)).await {
            Ok(Ok(())) => {
                if let Some(loaded) = self.slots[at].loaded().as_mut() {
                    let now = Instant::now();
                    loaded.took.get_or_insert(now - loaded.begun);
                    loaded.used = now;
                }
                self.slots[at].failed.store(0, Ordering::Relaxed);
                Ok(app)
            }
            Ok(Err(reason)) => {
                let _turn = self.turn.lock().await;
                let is_it = |loaded: &mut Loaded| Arc::ptr_eq(&loaded.app.in_use, &app.in_use);
                // The first of those that wait for it ends it.
                let broken = self.slots[at].loaded().take_if(is_it);
                let is_first = broken.is_some();
                self.end_line(at, broken, &reason).await;
                Err(match is_first {
                    true => self.failed(at, reason),
                    false => NotLoaded::Never(reason),
                })
            }
            Err(_) => Err(NotLoaded::NotYet(match app.engine.status() {
                Status::Loading(loading) => loading,
                Status::Down { next: Some(loading), .. } => loading,
                _ => Loading::default(),
            })),
        }
    }

    /// Ends lines that nobody has used for as long as their options say, or whose workers a line lacks that is down.
    async fn sweep(self: Arc<Self>) {
        while self
            .door
            .draining
            .run_until_cancelled(tokio::time::sleep(SWEEP_EVERY))
            .await
            .is_some()
        {
            for (at, slot) in self.slots.iter().enumerate() {
                if slot.is_past_its_time() {
                    let _turn = self.turn.lock().await;
                    if slot.is_past_its_time() {
                        self.unload_idle(at, "nobody has used it for long").await;
                    }
                }
            }
            let Some(pool) = self.pool() else { continue };
            if !pool.helps_others(&self.seats(true)).is_empty() {
                let _turn = self.turn.lock().await;
                let go = pool.helps_others(&self.seats(true));
                self.give_up(&go, "another model has lost a worker").await;
            }
        }
    }
}

impl Slot {
    fn state(&self) -> ModelState {
        let loaded = self.loaded();
        let state = match loaded.as_ref().map(|loaded| loaded.app.engine.status()) {
            None => "unloaded",
            Some(Status::Ready(_)) => "loaded",
            Some(_) => "loading",
        };
        let idle = loaded.as_ref().filter(|loaded| Arc::strong_count(&loaded.app.in_use) == 1);
        let Standing { pinned, loaded: ordered, quarantine } = self.standing().clone();
        let state = if quarantine.is_some() { "quarantined" } else { state };
        ModelState {
            name: self.served.model.name().to_owned(),
            state: state.to_owned(),
            pinned,
            ordered,
            reason: quarantine.map(|quarantine| quarantine.reason),
            bytes: self.served.host_memory(),
            idle_seconds: idle.map(|loaded| loaded.used.elapsed().as_secs()),
        }
    }

    fn loaded(&self) -> MutexGuard<'_, Option<Loaded>> {
        // A panic elsewhere leaves a whole line behind, or none.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn standing(&self) -> MutexGuard<'_, Standing> {
        // It is changed as a whole.
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stays(&self) -> bool {
        self.standing().pinned
    }

    /// Whether nobody has used it for as long as its options say; notes that somebody does.
    fn is_past_its_time(&self) -> bool {
        let mut loaded = self.loaded();
        let Some(loaded) = loaded.as_mut() else { return false };
        if Arc::strong_count(&loaded.app.in_use) > 1 {
            loaded.used = Instant::now();
        }
        let after = self.served.args().unload_after;
        let is_past = after.is_some_and(|after| loaded.used.elapsed() >= after);
        is_past && loaded.may_go() && !self.stays()
    }
}

/// The files of a model, as far as a change of them is noticed.
fn files_of(served: &Served) -> String {
    let states = served.model.files.iter().flat_map(TensorFiles::states);
    let stamp =
        |(_, state): (&Path, &FileState)| format!(" {} bytes of {}", state.nbytes, state.mtime_ns);
    format!("{}{}", served.model.identity(), states.map(stamp).collect::<String>())
}

/// What holds of a model: a quarantine is of the files that it had then.
fn standing_of(standings: &Standings, served: &Served) -> Standing {
    let Standing { quarantine, .. } = standings.of(served.model.name());
    let quarantine = quarantine.filter(|quarantine| quarantine.files == files_of(served));
    Standing { quarantine, ..standings.of(served.model.name()) }
}

/// Waits until requests can run.
async fn up(engine: &Engine) -> Result<(), String> {
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

//! Models that are loaded when a request needs them, and unloaded when another one needs their memory.
//!
//! Each user of a model holds a copy of its [`App`]: a model without copies is idle, and may be unloaded. [`Turns`]
//! decides which model is loaded next, and which make room for it; `conduct` carries that out.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use brigade_cluster::Pool;
use brigade_http::{App, Coming, Door, Loader, MODEL_WITHIN, Member, NotLoaded, Wish};
use brigade_line::admin::{ModelState, Refused};
use brigade_line::health::Loading;
use brigade_line::measured::models;
use tokio::sync::Notify;
use tokio::time::timeout_at;

use super::grants::Memory;
use super::lines::Served;
use super::slot::{Slot, how_far, standing_of, up};
use super::standing::{Quarantine, Standing, Standings};
use super::turns::{Turns, Why, WishId};

/// The wish of an operator, or of the server itself.
const OF_NO_KEY: Wish = Wish { key: None, within: MODEL_WITHIN };

/// A model whose line has failed so often, one load after the other, is loaded no more, until an operator wants it.
const FAILURES: u32 = 3;

/// The models of a server that are loaded on demand.
#[derive(Debug)]
pub struct Stable {
    /// The models. Their indices never change; a removed one leaves its place to another.
    slots: RwLock<Vec<Option<Arc<Slot>>>>,
    /// Memory of this machine for all of them.
    pub(super) memory: Arc<Memory>,
    pub(super) door: Arc<Door>,
    /// Orders and quarantines that hold over restarts.
    standings: Standings,
    turns: Mutex<Turns>,
    /// Something may be decided.
    pub(super) news: Notify,
    /// Held while lines begin and end.
    pub(super) doing: tokio::sync::RwLock<()>,
}

/// One of a stable's models, for the server's door.
#[derive(Debug)]
struct Stall(Arc<Stable>, Arc<Slot>);

impl Loader for Stall {
    fn loaded(&self, wish: Wish) -> Coming<'_> {
        Box::pin(self.0.loaded(&self.1, wish))
    }

    fn now(&self) -> Option<App> {
        self.1.loaded().as_ref().map(|loaded| loaded.app.clone())
    }

    fn keep(&self, key: Option<u64>, keep: Option<Duration>) {
        self.1.keep(key, keep);
    }
}

/// A request that waits for a model.
struct Waiting<'s>(&'s Stable, WishId);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.turns().forget(self.1);
        // Models that would have made room for it may stay.
        self.0.news.notify_one();
    }
}

impl Stable {
    /// Models that share `budget` bytes of this machine's memory, `max_loaded` of them at once. None is loaded yet.
    ///
    /// # Errors
    /// A journal of theirs cannot be read.
    pub fn new(
        all: Vec<Served>,
        budget: u64,
        max_loaded: Option<usize>,
        door: Arc<Door>,
        standings: Standings,
    ) -> anyhow::Result<Arc<Self>> {
        let slot = |(at, served)| {
            Slot::new(at, served, &door, &standings).map(|slot| Some(Arc::new(slot)))
        };
        let slots = all.into_iter().enumerate().map(slot).collect::<Result<_, _>>()?;
        let slots = RwLock::new(slots);
        let turns = Mutex::new(Turns::new(max_loaded));
        let (memory, news) = (Memory::new(budget), Notify::new());
        let doing = tokio::sync::RwLock::default();
        let stable = Arc::new(Self { slots, memory, door, standings, turns, news, doing });
        tokio::spawn(stable.clone().conduct());
        tokio::spawn(stable.clone().sweep());
        Ok(stable)
    }

    /// Each model, for the server's door.
    pub fn members(self: &Arc<Self>) -> impl Iterator<Item = Member> {
        self.all().into_iter().map(|slot| self.member(slot))
    }

    /// A model, for the server's door.
    pub fn member(self: &Arc<Self>, slot: Arc<Slot>) -> Member {
        Member::on_demand(slot.asleep.clone(), self.loader(slot))
    }

    /// What loads a model for requests.
    pub fn loader(self: &Arc<Self>, slot: Arc<Slot>) -> Arc<dyn Loader> {
        Arc::new(Stall(self.clone(), slot))
    }

    /// Adds a model.
    ///
    /// # Errors
    /// The model's journal cannot be read.
    pub fn add(&self, served: Served) -> anyhow::Result<Arc<Slot>> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let at = slots.iter().position(Option::is_none).unwrap_or(slots.len());
        let slot = Arc::new(Slot::new(at, served, &self.door, &self.standings)?);
        match slots.get_mut(at) {
            Some(place) => *place = Some(slot.clone()),
            None => slots.push(Some(slot.clone())),
        }
        Ok(slot)
    }

    /// Removes a model that is not loaded and that nobody waits for, so that its file is closed. Returns whether it did.
    pub fn remove(&self, slot: &Slot) -> bool {
        let Ok(_turn) = slot.turn.try_lock() else { return false };
        let mut turns = self.turns();
        if slot.loaded().is_some() || slot.comes.load(Ordering::Relaxed) || turns.is_wanted(slot.at)
        {
            return false;
        }
        slot.retire();
        turns.give_up(slot.at);
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = slots.get_mut(slot.at)
            && place.as_deref().is_some_and(|own| std::ptr::eq(own, slot))
        {
            *place = None;
        }
        true
    }

    /// The models at their indices.
    pub(super) fn places(&self) -> Vec<Option<Arc<Slot>>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A snapshot of all models.
    pub(super) fn all(&self) -> Vec<Arc<Slot>> {
        self.places().into_iter().flatten().collect()
    }

    /// The memory of this machine that models have together.
    pub fn budget(&self) -> u64 {
        self.memory.budget()
    }

    /// The order of loads, locked. Its holder may lock a loaded model, but not the other way round.
    pub(super) fn turns(&self) -> MutexGuard<'_, Turns> {
        // Decisions are made as a whole.
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends all lines beside each other.
    pub async fn end(&self) {
        // The server is draining: nothing begins any more.
        let _alone = self.doing.write().await;
        let mut ending = tokio::task::JoinSet::new();
        for slot in self.all() {
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

    /// Asks the pool that lends workers, if there is one.
    pub fn with_pool<T>(&self, ask: impl FnOnce(&Pool) -> T) -> Option<T> {
        let shared = self.all().into_iter().find_map(|slot| slot.served.shared.clone())?;
        Some(ask(&shared.pool))
    }

    /// The state of each model.
    pub fn states(&self) -> Vec<ModelState> {
        let all = self.all();
        let is_here = |slot: &&Arc<Slot>| !slot.is_retired() || slot.loaded().is_some();
        all.iter().filter(is_here).map(|slot| slot.state()).collect()
    }

    /// The model with this name.
    ///
    /// # Errors
    /// There is no such model; lists those that there are.
    pub fn find(&self, model: &str) -> Result<Arc<Slot>, Refused> {
        let all = self.all();
        let is_it = |slot: &Arc<Slot>| slot.name() == model && !slot.is_retired();
        all.iter().find(|slot| is_it(slot)).cloned().ok_or_else(|| {
            let all = all.iter().filter(|slot| !slot.is_retired());
            let all: Vec<&str> = all.map(|slot| slot.name()).collect();
            Refused(format!(
                "no model that is loaded on demand is called {model}: the names are {}",
                all.join(", ")
            ))
        })
    }

    /// Loads models that have streams which go on, and then those that operators want loaded, one after the other.
    pub async fn load_first(self: Arc<Self>) {
        let all = self.all();
        let of = |wanted: fn(&Slot) -> bool| {
            all.iter().filter(move |slot| wanted(slot)).cloned().collect::<Vec<_>>()
        };
        let ordered = of(|slot| !slot.goes_on && slot.standing().loaded);
        for slot in of(|slot| slot.goes_on).into_iter().chain(ordered) {
            // The reason of a failure is in the log, and in the model's state.
            drop(self.loaded(&slot, OF_NO_KEY).await);
        }
    }

    /// Loads a model, and waits until it is up, also one that was not to be loaded again. It is loaded after a restart too.
    ///
    /// # Errors
    /// The model is not up within [`MODEL_WITHIN`], or never; or the order cannot be kept.
    pub async fn load(&self, slot: &Slot) -> Result<String, Refused> {
        let name = slot.name();
        slot.failed.store(0, Ordering::Relaxed);
        self.order(slot, |standing| (standing.loaded, standing.quarantine) = (true, None))?;
        match self.loaded(slot, OF_NO_KEY).await {
            Ok(_) => Ok(format!("{name} is loaded")),
            Err(NotLoaded::NotYet(loading) | NotLoaded::Fetching(loading)) => {
                Err(Refused(format!("{name} is being loaded: {loading}")))
            }
            Err(NotLoaded::NoRoom) => Err(Refused(format!(
                "there is no room for {name}: the models that are loaded are in use or pinned"
            ))),
            Err(
                NotLoaded::Never(reason) | NotLoaded::Missing(reason) | NotLoaded::Refused(reason),
            ) => Err(Refused(reason)),
        }
    }

    /// Unloads an idle model. It is loaded again when a request needs it.
    ///
    /// # Errors
    /// The model is in use, or the order cannot be kept.
    pub async fn unload(&self, slot: &Slot) -> Result<String, Refused> {
        let _doing = self.doing.read().await;
        let name = slot.name();
        let _turn = slot.turn.lock().await;
        let (idle, is_used) = {
            let mut loaded = slot.loaded();
            (loaded.take_if(|loaded| !loaded.is_used()), loaded.is_some())
        };
        if is_used {
            return Err(Refused(format!(
                "{name} is in use: ask again when its answers have ended"
            )));
        }
        let was_there = idle.is_some();
        self.end_line(slot, idle, "an operator wants it").await;
        self.order(slot, |standing| standing.loaded = false)?;
        let what = if was_there { "is unloaded" } else { "was not loaded" };
        let pinned = if slot.standing().pinned {
            "; it is pinned, and stays again once it is loaded"
        } else {
            ""
        };
        Ok(format!("{name} {what}{pinned}"))
    }

    /// Whether a model stays once it is loaded.
    ///
    /// # Errors
    /// The order cannot be kept.
    pub fn pin(&self, slot: &Slot, stays: bool) -> Result<String, Refused> {
        self.order(slot, |standing| standing.pinned = stays)?;
        let what =
            if stays { "stays once it is loaded" } else { "may be unloaded when it is idle" };
        let until = if self.standings.are_kept() { "" } else { ", until the server ends" };
        Ok(format!("{} {what}{until}", slot.name()))
    }

    /// Changes what holds of a model, by order.
    fn order(&self, slot: &Slot, change: impl FnOnce(&mut Standing)) -> Result<(), Refused> {
        self.change(slot, change)
            .map_err(|error| Refused(format!("the order cannot be kept: {error}")))
    }

    fn change(&self, slot: &Slot, change: impl FnOnce(&mut Standing)) -> io::Result<()> {
        self.standings.change(slot.name(), change)?;
        *slot.standing() = standing_of(&self.standings, &slot.served);
        Ok(())
    }

    /// A model's line could not be begun, or did not come up: those who wait for it are told.
    pub(super) fn failed(&self, slot: &Slot, reason: String) {
        models::load_failed(slot.name());
        if slot.failed.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES {
            let quarantine = Some(slot.quarantine(&reason));
            let kept = self.change(slot, |standing| standing.quarantine = quarantine.clone());
            if let Err(error) = kept {
                tracing::error!(%error, "the record that a model failed too often to be loaded cannot be written: it holds only until a restart");
                slot.standing().quarantine = quarantine;
            }
        }
        self.refused(slot, reason);
    }

    /// A model is not loaded for this reason: those who wait for it are told.
    pub(super) fn refused(&self, slot: &Slot, reason: String) {
        self.turns().give_up(slot.at);
        slot.tries.send_modify(|tried| (tried.n, tried.failed) = (tried.n + 1, Some(reason)));
    }

    /// The model with its line that is up.
    async fn loaded(&self, slot: &Slot, wish: Wish) -> Result<App, NotLoaded> {
        let until = Instant::now() + wish.within;
        let before = slot.tries.borrow().n;
        let app = match self.open(slot) {
            Some(app) => app,
            None => self.wait_for_line(slot, wish, until).await?,
        };
        match timeout_at(until.into(), up(&app.engine)).await {
            Ok(Ok(())) => {
                slot.is_used_by(wish.key);
                slot.failed.store(0, Ordering::Relaxed);
                Ok(app)
            }
            Ok(Err(reason)) => Err(self.broke(slot, &app, before, reason).await),
            Err(_) => Err(NotLoaded::NotYet(how_far(&app))),
        }
    }

    /// A copy of a model that is loaded and takes requests.
    fn open(&self, slot: &Slot) -> Option<App> {
        let turns = self.turns();
        let loaded = slot.loaded();
        loaded.as_ref().filter(|_| !turns.yields(slot.at)).map(|loaded| loaded.app.clone())
    }

    /// Waits for a model's line to be begun.
    async fn wait_for_line(
        &self,
        slot: &Slot,
        wish: Wish,
        until: Instant,
    ) -> Result<App, NotLoaded> {
        let mut tries = slot.tries.subscribe();
        let before = tries.borrow_and_update().n;
        self.may_be_loaded(slot)?;
        let waiting = Waiting(self, self.want(slot, wish)?);
        self.news.notify_one();
        loop {
            if let Some(app) = self.open(slot) {
                drop(waiting);
                return Ok(app);
            }
            {
                let tried = tries.borrow_and_update();
                if let Some(reason) = tried.failed.clone().filter(|_| tried.n > before) {
                    return Err(NotLoaded::Never(reason));
                }
            }
            tokio::select! {
                // The slot has the other end.
                _ = tries.changed() => {}
                () = self.door.draining.cancelled() => return Err(shutting_down()),
                () = tokio::time::sleep_until(until.into()) => return Err(self.why_not(slot)),
            }
        }
    }

    /// Queues a request for a model that is not removed.
    fn want(&self, slot: &Slot, wish: Wish) -> Result<WishId, NotLoaded> {
        let mut turns = self.turns();
        if slot.is_retired() {
            let reason = format!("the file of {} is gone: ask again", slot.name());
            return Err(NotLoaded::Never(reason));
        }
        Ok(turns.want(slot.at, wish.key))
    }

    /// Refuses a model that can never be loaded.
    fn may_be_loaded(&self, slot: &Slot) -> Result<(), NotLoaded> {
        if self.door.draining.is_cancelled() {
            return Err(shutting_down());
        }
        let name = slot.name();
        if let Some(Quarantine { reason, .. }) = &slot.standing().quarantine {
            return Err(NotLoaded::Never(format!(
                "its line has failed {FAILURES} times, one after the other ({reason}): load it again with `brigade cluster load {name}`, or change its file"
            )));
        }
        if let Some(shared) = &slot.served.shared {
            let demand = slot.served.demand().map_err(|error| {
                let reason = format!("{error:#}");
                self.failed(slot, reason.clone());
                NotLoaded::Never(reason)
            })?;
            return match shared.pool.never(&demand) {
                Some(reason) => {
                    slot.tries.send_modify(|tried| tried.failed = Some(reason.clone()));
                    Err(NotLoaded::Never(reason))
                }
                None => Ok(()),
            };
        }
        let (wants, budget) = (slot.served.host_memory(), self.memory.budget());
        if wants > budget {
            Err(NotLoaded::Never(format!(
                "{name} needs {wants} bytes, and the models that are loaded on demand have {budget}: give it fewer with \
                 memory = SIZE, or workers on other machines"
            )))
        } else {
            Ok(())
        }
    }

    /// Why a model was not loaded in time.
    fn why_not(&self, slot: &Slot) -> NotLoaded {
        if let Some(loaded) = &*slot.loaded() {
            return NotLoaded::NotYet(how_far(&loaded.app));
        }
        let why = self.turns().why(slot.at);
        if slot.comes.load(Ordering::Relaxed) || why == Why::Turn {
            return NotLoaded::NotYet(Loading::step("waits for the load of another model"));
        }
        let seats: Vec<_> = self.all().iter().filter_map(|slot| slot.seat(false)).collect();
        let seats: Vec<_> = seats.into_iter().map(|(_, seat)| seat).collect();
        let lacking =
            slot.served.shared.as_ref().and_then(|shared| {
                shared.pool.in_the_way(&slot.served.demand().ok()?, &seats).err()
            });
        match lacking {
            Some(why) => NotLoaded::NotYet(Loading::step(format!("waits for workers: {why}"))),
            None => NotLoaded::NoRoom,
        }
    }

    /// A model's line has ended before it was up: waits until it is gone, so that the next load is another one.
    async fn broke(&self, slot: &Slot, app: &App, before: u64, reason: String) -> NotLoaded {
        let mut tries = slot.tries.subscribe();
        let is_there = || {
            let loaded = slot.loaded();
            loaded.as_ref().is_some_and(|loaded| Arc::ptr_eq(&loaded.app.in_use, &app.in_use))
        };
        while is_there() && tries.borrow_and_update().n == before {
            self.news.notify_one();
            if tries.changed().await.is_err() {
                break;
            }
        }
        let tried = tries.borrow_and_update();
        let said = tried.failed.clone().filter(|_| tried.n > before);
        NotLoaded::Never(said.unwrap_or(reason))
    }
}

fn shutting_down() -> NotLoaded {
    NotLoaded::Never("the server is shutting down".to_owned())
}

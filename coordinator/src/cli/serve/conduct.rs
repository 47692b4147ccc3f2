//! Carries out decisions about models that are loaded on demand. Lines end in parallel. A new one begins when those
//! that make room for it have ended, and holds up no other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use brigade_cluster::{Seat, SeatId};
use brigade_line::measured::models;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinSet;

use super::on_demand::Stable;
use super::room::Rooms;
use super::slot::{Loaded, Slot};
use super::turns::{Next, Sight};

/// How often models that are in use are looked at again while one waits for its room.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How often idle models are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// A line that is being ended, with the lock that keeps its model from being loaded.
type Going = (Arc<Slot>, Loaded, OwnedMutexGuard<()>);

impl Stable {
    /// Begins and ends lines, until the server takes nothing new.
    pub(super) async fn conduct(self: Arc<Self>) {
        let draining = self.door.draining.clone();
        while !draining.is_cancelled() {
            self.bury();
            while let Some((slot, going)) = self.decide() {
                tokio::spawn(self.clone().exchange(slot, going));
            }
            let waits = self.turns().is_busy();
            tokio::select! {
                () = self.news.notified() => {}
                () = tokio::time::sleep(LOOK_EVERY), if waits => {}
                () = draining.cancelled() => {}
            }
        }
    }

    /// The model whose line is to be begun now, and the lines that go for it. No request can use these any more.
    fn decide(&self) -> Option<(Arc<Slot>, Vec<Going>)> {
        let now = Instant::now();
        let mut turns = self.turns();
        let slots = self.places();
        let before: Vec<bool> = (0..slots.len()).map(|at| turns.yields(at)).collect();
        let of = |slot: &Option<Arc<Slot>>| match slot {
            Some(slot) => slot.sight(now),
            None => Sight::nobody(now),
        };
        let sights: Vec<_> = slots.iter().map(of).collect();
        let rooms = Rooms { slots: &slots, budget: self.memory.budget() };
        let next = turns.next(now, &sights, &rooms);
        for slot in slots.iter().flatten() {
            let at = slot.at;
            if before[at] && !turns.yields(at) {
                slot.tell();
            }
            if !before[at] && turns.yields(at) {
                tracing::info!(
                    model = slot.name(),
                    "the model takes no new requests: another model waits for its memory"
                );
            }
        }
        let Next::Load { model, go } = next else { return None };
        let mut going: Vec<Going> = Vec::new();
        for slot in go.into_iter().filter_map(|at| slots[at].clone()) {
            let turn = slot.turn.clone().try_lock_owned();
            let loaded = turn.ok().and_then(|turn| {
                let loaded = slot.loaded().take_if(|loaded| !loaded.is_used())?;
                Some((loaded, turn))
            });
            let Some((loaded, turn)) = loaded else {
                // It is in use for a moment, or an operator was quicker: the others stay, and all is decided again.
                for (slot, loaded, _) in going {
                    *slot.loaded() = Some(loaded);
                    slot.tell();
                }
                return None;
            };
            going.push((slot, loaded, turn));
        }
        let slot = slots[model].clone()?;
        slot.comes.store(true, Ordering::Relaxed);
        Some((slot, going))
    }

    /// Ends lines, and begins another.
    async fn exchange(self: Arc<Self>, slot: Arc<Slot>, going: Vec<Going>) {
        let _doing = self.doing.read().await;
        let mut ending = JoinSet::new();
        for (slot, loaded, turn) in going {
            let stable = self.clone();
            ending.spawn(async move {
                let why = "another model needs its memory";
                stable.end_line(&slot, Some(loaded), why).await;
                drop(turn);
            });
        }
        while ending.join_next().await.is_some() {}
        self.begin(&slot).await;
        slot.comes.store(false, Ordering::Relaxed);
        slot.tell();
        self.news.notify_one();
    }

    /// Begins a model's line.
    async fn begin(&self, slot: &Slot) {
        let _turn = slot.turn.lock().await;
        if self.door.draining.is_cancelled() || slot.loaded().is_some() {
            return;
        }
        let seat = match self.reserve(slot) {
            Ok(seat) => seat,
            Err(why) => {
                tracing::info!(
                    model = slot.name(),
                    why,
                    "a worker has gone: the model waits for workers again"
                );
                return;
            }
        };
        let memory = self.memory.take(slot.served.host_memory()).await;
        tracing::info!(model = slot.name(), "a request needs the model: it is loaded");
        let seat_id = seat.as_ref().map(|seat| seat.id());
        let mut line = match slot.served.start(seat).await {
            Ok(line) => line,
            Err(error) => return self.failed(slot, format!("{error:#}")),
        };
        line.open_admin_socket(&line.session.ends());
        let app = line.open(self.door.clone());
        *slot.loaded() = Some(Loaded::new(line, app, seat_id, memory));
        slot.tries.send_modify(|tried| (tried.n, tried.failed) = (tried.n + 1, None));
    }

    /// Workers of the pool for a model, if it is lent some.
    fn reserve(&self, slot: &Slot) -> Result<Option<Arc<Seat>>, String> {
        let Some(shared) = &slot.served.shared else { return Ok(None) };
        let demand = slot.served.demand().map_err(|error| format!("{error:#}"))?;
        shared.pool.reserve(demand).map(Some)
    }

    /// Ends lines that have ended by themselves.
    fn bury(self: &Arc<Self>) {
        let is_broken = |slot: &Arc<Slot>| slot.loaded().as_ref().is_some_and(Loaded::is_broken);
        for slot in self.all().into_iter().filter(is_broken) {
            let Ok(turn) = slot.turn.clone().try_lock_owned() else { continue };
            let Some(loaded) = slot.loaded().take_if(|loaded| loaded.is_broken()) else { continue };
            let stable = self.clone();
            tokio::spawn(async move {
                let _doing = stable.doing.read().await;
                let reason = super::slot::up(&loaded.app.engine).await.err().unwrap_or_default();
                stable.end_line(&slot, Some(loaded), &reason).await;
                drop(turn);
                stable.failed(&slot, reason);
                stable.news.notify_one();
            });
        }
    }

    /// Ends loads that stand still, although requests wait for them, and those that can never end.
    fn give_up(self: &Arc<Self>) {
        let now = Instant::now();
        for slot in self.all() {
            let patience = slot.served.args().load_patience;
            let stands =
                slot.loaded().as_mut().and_then(|loaded| loaded.stands_still(now, patience));
            let never = || self.never_fits(&slot);
            let Some((reason, never)) =
                stands.map(|why| (why, false)).or_else(|| never().map(|why| (why, true)))
            else {
                continue;
            };
            if slot.loaded().is_none() {
                self.refused(&slot, reason);
                continue;
            }
            let Ok(turn) = slot.turn.clone().try_lock_owned() else { continue };
            let Some(loaded) = slot.loaded().take() else { continue };
            let stable = self.clone();
            tokio::spawn(async move {
                let _doing = stable.doing.read().await;
                // One that never fits has not failed: it is loaded when there is room. Those who wait hear that before its line ends.
                if never {
                    stable.refused(&slot, reason.clone());
                }
                stable.end_line(&slot, Some(loaded), &reason).await;
                drop(turn);
                if !never {
                    stable.failed(&slot, reason);
                }
                stable.news.notify_one();
            });
        }
    }

    /// Why a model that is waited for never fits the workers that there are.
    fn never_fits(&self, slot: &Slot) -> Option<String> {
        let pool = &slot.served.shared.as_ref()?.pool;
        let seat = match slot.loaded().as_ref() {
            Some(loaded) if loaded.is_up() => return None,
            Some(loaded) => Some(loaded.seat?),
            None => None,
        };
        match seat {
            Some(seat) => pool.never_of(seat),
            None if self.turns().is_wanted(slot.at) => pool.never(&slot.served.demand().ok()?),
            None => None,
        }
    }

    /// Ends a model's line.
    pub(super) async fn end_line(&self, slot: &Slot, loaded: Option<Loaded>, why: &str) {
        let Some(loaded) = loaded else { return };
        tracing::info!(model = slot.name(), why, "the model is unloaded");
        models::unloaded(slot.name());
        slot.is_left(&loaded);
        if let Err(error) = loaded.end().await {
            tracing::error!(error = format!("{error:#}"), "the end of a line");
        }
    }

    /// Ends a model's line, unless a request has come for it.
    pub(super) async fn unload_idle(&self, slot: &Slot, why: &str) {
        let _doing = self.doing.read().await;
        let _turn = slot.turn.lock().await;
        let idle = slot.loaded().take_if(|loaded| loaded.may_go());
        self.end_line(slot, idle, why).await;
        self.news.notify_one();
    }

    /// Ends lines that were idle for the time in their options, and lines that are down while others lack their
    /// workers.
    pub(super) async fn sweep(self: Arc<Self>) {
        let draining = self.door.draining.clone();
        while draining.run_until_cancelled(tokio::time::sleep(SWEEP_EVERY)).await.is_some() {
            self.news.notify_one();
            self.give_up();
            for slot in self.all() {
                if slot.is_past_its_time() {
                    self.unload_idle(&slot, "it is idle, and its time to stay loaded is over")
                        .await;
                }
                if slot.is_retired() {
                    self.remove(&slot);
                }
            }
            let go = self.with_pool(|pool| pool.helps_others(&self.idle_seats()));
            for seat in go.unwrap_or_default() {
                let has = |slot: &Arc<Slot>| slot.seat(true).is_some_and(|(_, own)| own == seat);
                if let Some(slot) = self.all().into_iter().find(has) {
                    self.unload_idle(&slot, "another model has lost a worker").await;
                }
            }
        }
    }

    /// Places at the pool of models that may go, the least recently used first.
    fn idle_seats(&self) -> Vec<SeatId> {
        let mut seats: Vec<_> = self.all().iter().filter_map(|slot| slot.seat(true)).collect();
        seats.sort();
        seats.into_iter().map(|(_, seat)| seat).collect()
    }
}

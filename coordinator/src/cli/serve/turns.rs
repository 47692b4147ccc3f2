//! Decides which model is loaded next, and which make room for it, without a clock, a line or a thread. The caller
//! passes the time and the models' states, and carries out the decisions.
//!
//! A load is charged to the key whose request causes it. A key has one at a time, and of several keys the one goes
//! first whose last load is longest ago. So a key that asks for another model with every request keeps no other key
//! from its own. The next model waits for its room, and no other one may take that room.
//!
//! Idle models go first. A model that is always in use has its turn too: once it has been there for `swap_after` it
//! yields to one that waits. It takes nothing new then, ends what runs, and goes. Models that are always in use so have their
//! places for equal times, and each waits for as long as the others. Where loads are short, a fixed time would be a wait out of
//! proportion, so without an order it is a multiple of the load.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// How long a model that is always in use has its place, where nobody says: this long at most ...
const PLACE_FOR: Duration = Duration::from_secs(60);
/// ... and at most so many times as long as its load took. A seventh of the time is then spent on loads,
/// and nobody waits for more than ten loads while few models wait for one place.
const PLACE_FOR_LOADS: u32 = 6;

/// The key to which a load is charged; `None`: clients without keys of their own.
pub type Key = Option<u64>;

/// How a model's line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The model has no line.
    Away,
    /// The line is not up yet.
    Coming,
    /// The line came up at `since`, after a load of `took`.
    Up { since: Instant, took: Duration },
}

/// How a model is.
#[derive(Clone, Copy, Debug)]
pub struct Sight {
    /// The state of its line.
    pub stage: Stage,
    /// Whether it is in use.
    pub is_used: bool,
    /// When it was last in use.
    pub used: Instant,
    /// Whether it stays by order.
    pub stays: bool,
    /// How long it has its place for sure while it is always in use; `None`: what suits its load.
    pub swap_after: Option<Duration>,
}

impl Sight {
    /// A place without a model.
    pub fn nobody(now: Instant) -> Self {
        let (is_used, stays, swap_after) = (false, true, None);
        Self { stage: Stage::Away, is_used, used: now, stays, swap_after }
    }

    /// How long a model that is always in use has its place after a load of `took`.
    fn has_place_for(&self, took: Duration) -> Duration {
        let suits = || PLACE_FOR.min(took.saturating_mul(PLACE_FOR_LOADS));
        self.swap_after.unwrap_or_else(suits).max(took)
    }
}

/// The room that models need.
pub trait Room {
    /// The models in `go` that must be unloaded to make room for `model`, chosen from its beginning; `None`: all of
    /// them together are not enough.
    fn in_the_way(&self, model: usize, go: &[usize]) -> Option<Vec<usize>>;

    /// Models that take of the same have the same number.
    fn kind(&self, model: usize) -> usize;

    /// Whether a model has to wait, because what another one of its kind takes is not settled.
    fn is_closed(&self, _model: usize) -> bool {
        false
    }
}

/// The next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Wait until something changes.
    Wait,
    /// End the lines of some models, and start that of another.
    Load {
        /// The model to load.
        model: usize,
        /// The models to unload for it.
        go: Vec<usize>,
    },
}

/// Why a model that is wanted is not being loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Other models are before it, or its key has another load in progress.
    Turn,
    /// All that would have to make room is in use.
    Used,
    /// Nothing that may go makes room enough.
    Lacks,
}

/// A request's wish for a model.
pub type WishId = u64;

#[derive(Clone, Copy, Debug)]
struct Want {
    model: usize,
    key: Key,
    id: WishId,
}

/// Models that yield, and the model to which they yield.
#[derive(Debug)]
struct Giving {
    to: usize,
    models: BTreeSet<usize>,
}

/// The order of loads.
#[derive(Debug, Default)]
pub struct Turns {
    /// Most models that have a line at once.
    max_loaded: Option<usize>,
    /// Wishes in the order in which they came.
    wants: Vec<Want>,
    /// The number of loads so far.
    loads: u64,
    /// The number of each key's last one.
    last: BTreeMap<Key, u64>,
    /// Loads that are under way, and whose they are.
    under_way: Vec<(u64, usize)>,
    giving: Vec<Giving>,
    why: BTreeMap<usize, Why>,
    ids: WishId,
}

impl Turns {
    /// An order with at most `max_loaded` models loaded at once.
    pub fn new(max_loaded: Option<usize>) -> Self {
        Self { max_loaded, ..Self::default() }
    }

    /// A request of this key needs a model that has no line, or one that yields.
    pub fn want(&mut self, model: usize, key: Key) -> WishId {
        self.ids += 1;
        self.wants.push(Want { model, key, id: self.ids });
        self.ids
    }

    /// A request has its model, or waits no more.
    pub fn forget(&mut self, id: WishId) {
        self.wants.retain(|want| want.id != id);
    }

    /// A model could not be loaded: those who waited for it are told, and wait no more.
    pub fn give_up(&mut self, model: usize) {
        self.wants.retain(|want| want.model != model);
    }

    /// Whether requests wait for a model.
    pub fn is_wanted(&self, model: usize) -> bool {
        self.wants.iter().any(|want| want.model == model)
    }

    /// Whether anything is waited for.
    pub fn is_busy(&self) -> bool {
        !self.wants.is_empty()
    }

    /// Whether a model takes nothing new, because it yields to another.
    pub fn yields(&self, model: usize) -> bool {
        self.giving.iter().any(|giving| giving.models.contains(&model))
    }

    /// Why a model is not being loaded, when that was last considered.
    pub fn why(&self, model: usize) -> Why {
        self.why.get(&model).copied().unwrap_or(Why::Turn)
    }

    /// Decides the next step. The caller must carry it out before it asks again.
    pub fn next(&mut self, now: Instant, sights: &[Sight], room: &dyn Room) -> Next {
        self.under_way.retain(|(_, model)| sights[*model].stage == Stage::Coming);
        let idle = self.idle(now, sights);
        let mut giving = std::mem::take(&mut self.giving);
        self.why.clear();
        // The first of a kind waits for its room, and those behind it need not wait for the same. But models that
        // make room for them may end their answers at the same time.
        let mut waits = BTreeSet::new();
        let mut gone = BTreeSet::new();
        for want in self.in_order(sights) {
            let is_first = waits.insert(room.kind(want.model)) && !room.is_closed(want.model);
            let is_left = |model: &usize| !gone.contains(model);
            let idle: Vec<usize> = idle.iter().copied().filter(is_left).collect();
            if is_first && let Some(go) = self.fit(want.model, &idle, sights, room) {
                self.charge(want);
                giving.retain(|giving| giving.to != want.model);
                self.keep(giving, sights);
                return Next::Load { model: want.model, go };
            }
            // Those that yield already go on with it.
            let before = giving.iter().position(|giving| giving.to == want.model);
            let before = before.map(|at| giving.remove(at));
            let yields = |model: &usize| before.as_ref().is_some_and(|b| b.models.contains(model));
            let mut all = idle.clone();
            all.extend(used(now, sights).into_iter().filter(is_left));
            all.sort_by_key(|model| !yields(model));
            self.why.insert(want.model, Why::Used);
            if let Some(go) = self.fit(want.model, &all, sights, room) {
                gone.extend(go.iter().copied());
                let models = go.into_iter().filter(|model| !idle.contains(model)).collect();
                self.giving.push(Giving { to: want.model, models });
            } else if !self.has_room_later(want.model, sights, room) {
                self.why.insert(want.model, Why::Lacks);
                // Other models of its kind need not wait for it.
                if is_first {
                    waits.remove(&room.kind(want.model));
                }
            }
        }
        Next::Wait
    }

    /// Whether a model has room when others have had their time.
    fn has_room_later(&self, model: usize, sights: &[Sight], room: &dyn Room) -> bool {
        let may_go = |at: &usize| !sights[*at].stays && sights[*at].stage != Stage::Away;
        let later: Vec<usize> = (0..sights.len()).filter(may_go).collect();
        self.fit(model, &later, sights, room).is_some()
    }

    /// Goes on with those that yield to models which still wait.
    fn keep(&mut self, giving: Vec<Giving>, sights: &[Sight]) {
        let waits = |to: usize| sights[to].stage == Stage::Away && self.is_wanted(to);
        let kept: Vec<Giving> = giving.into_iter().filter(|giving| waits(giving.to)).collect();
        self.giving.extend(kept);
    }

    /// The load is this key's.
    fn charge(&mut self, want: Want) {
        self.loads += 1;
        self.last.insert(want.key, self.loads);
        if let Some(key) = want.key {
            self.under_way.push((key, want.model));
        }
    }

    /// The models that may be loaded now, each with the key to which the load is charged. The key whose last load is
    /// longest ago comes first, and a key's wishes are in their order.
    fn in_order(&self, sights: &[Sight]) -> Vec<Want> {
        let is_loading =
            |key: Key| key.is_some_and(|key| self.under_way.iter().any(|u| u.0 == key));
        let may = |want: &&Want| sights[want.model].stage == Stage::Away && !is_loading(want.key);
        let mut wants: Vec<Want> = self.wants.iter().filter(may).copied().collect();
        wants.sort_by_key(|want| (self.last.get(&want.key).copied().unwrap_or(0), want.id));
        let mut seen = BTreeSet::new();
        wants.retain(|want| seen.insert(want.model));
        wants
    }

    /// Models that may go, the one that was used least recently first.
    fn idle(&self, now: Instant, sights: &[Sight]) -> Vec<usize> {
        let is_idle = |model: &usize| {
            let sight = &sights[*model];
            // A request for a model that is loaded will have it in a moment.
            let is_used = sight.is_used || (self.is_wanted(*model) && !self.yields(*model));
            !sight.stays
                && !is_used
                && match sight.stage {
                    Stage::Away => false,
                    Stage::Coming => true,
                    Stage::Up { since, took } => now.saturating_duration_since(since) >= took,
                }
        };
        let mut idle: Vec<usize> = (0..sights.len()).filter(is_idle).collect();
        idle.sort_by_key(|model| sights[*model].used);
        idle
    }

    /// The models in `may_go` that must be unloaded for a model.
    fn fit(
        &self,
        model: usize,
        may_go: &[usize],
        sights: &[Sight],
        room: &dyn Room,
    ) -> Option<Vec<usize>> {
        let mut go = room.in_the_way(model, may_go)?;
        let Some(most) = self.max_loaded else { return Some(go) };
        let loaded = sights.iter().filter(|sight| sight.stage != Stage::Away).count();
        let too_many = (loaded + 1).saturating_sub(most);
        let more: Vec<usize> = may_go.iter().filter(|model| !go.contains(model)).copied().collect();
        go.extend(more.into_iter().take(too_many.saturating_sub(go.len())));
        (go.len() >= too_many).then_some(go)
    }
}

/// Models that are in use and have had their time, the one that has been there longest first.
fn used(now: Instant, sights: &[Sight]) -> Vec<usize> {
    let there = |sight: &Sight| match sight.stage {
        Stage::Up { since, took } => {
            let there = now.saturating_duration_since(since);
            (sight.is_used && !sight.stays && there >= sight.has_place_for(took)).then_some(there)
        }
        _ => None,
    };
    let mut used: Vec<(Duration, usize)> =
        sights.iter().enumerate().filter_map(|(at, sight)| Some((there(sight)?, at))).collect();
    used.sort_by_key(|(there, _)| Reverse(*there));
    used.into_iter().map(|(_, at)| at).collect()
}

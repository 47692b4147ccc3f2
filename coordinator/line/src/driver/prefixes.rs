//! Records of prefixes on the workers, as the driver uses them. Kept states are written while nothing else happens to
//! them. A request whose prompt is not in the stages' memory waits a moment, until it is known whether its beginning
//! can be loaded.
//!
//! All of it is beside the loop: names are hashed, workers are asked and states are moved by tasks. The scheduler
//! does not know of a request that is held. If anything fails, the request is handed to the scheduler and its prompt
//! is computed.

use brigade_proto::task;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use brigade_sched::{Event, KeptId, Request, RequestId, Spoilt, space_of};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::Driver;
use super::cached::Drop;
use super::records::{Load, Loaded, Save, Saved, names};
use super::states::{Due, Transfer};
use crate::keys::KeyRing;
use crate::measured::metrics;
use crate::stages::open_line::OpenLine;
use crate::stages::prefix_names::{Names, Salt};
use crate::stages::states::{PrefixChoice, StateAccess};

/// Rows that must be spared to be worth a question to the workers.
const LEAST_ROWS: u32 = 64;

/// Requests that are held at most; more are computed as if there were nothing.
const MAX_HELD: usize = 64;

/// How long workers may take to say which records they have.
const FIND_WITHIN: Duration = Duration::from_secs(1);

/// News that the driver may be behind with.
const NEWS_QUEUE: usize = 64;

/// Weight of a new measurement of how fast states are loaded.
const RECENT: f64 = 0.25;

/// Settings for records of prefixes.
#[derive(Clone, Debug)]
pub struct PrefixConfig {
    /// The key of the hashes that name records.
    pub salt: Salt,
    /// Owners whose records stay; `None`: the server has no keys.
    pub keys: Option<KeyRing>,
}

/// Results of tasks that deal with records.
#[derive(Debug)]
pub(super) enum PrefixNews {
    /// The records that workers have of a request's prompt.
    Found { epoch: u64, request: RequestId, found: Result<Option<(Names, PrefixChoice)>, String> },
    /// Records were dropped, or not.
    Dropped { epoch: u64, result: Result<(), String> },
}

/// The driver's state about records of prefixes.
#[derive(Debug)]
pub(super) struct Prefixes {
    config: Option<PrefixConfig>,
    news: mpsc::Sender<PrefixNews>,
    held: HashMap<RequestId, Request>,
    /// States that need not be written.
    known: BTreeSet<KeptId>,
    /// States of which the workers have records.
    pub(super) recorded: BTreeSet<KeptId>,
    /// Owners whose states and records are to be dropped.
    pub(super) drops: VecDeque<Drop>,
    /// A state is being written, or records are dropped.
    is_busy: bool,
    /// Owners or states whose records are to be dropped.
    spoilt: VecDeque<Spoilt>,
    /// The record that is being dropped.
    dropping: Option<Spoilt>,
    /// Records were to be dropped since the load that is under way was begun.
    is_suspect: bool,
    /// Owners that the workers of this line know.
    told: Option<BTreeSet<u64>>,
    loads: VecDeque<Load>,
    is_loading: bool,
    /// Bytes that are loaded in a microsecond; `None`: it was not measured yet.
    speed: Option<f64>,
    /// A state could not be written, which was said.
    has_failed: bool,
}

impl Prefixes {
    /// Nothing yet; the receiver has the news.
    pub(super) fn new(config: Option<PrefixConfig>) -> (Self, mpsc::Receiver<PrefixNews>) {
        let (news, receiver) = mpsc::channel(NEWS_QUEUE);
        let (held, known, spoilt, told, loads) = Default::default();
        let (recorded, drops) = Default::default();
        let (is_busy, is_loading, speed, has_failed) = Default::default();
        let (dropping, is_suspect) = Default::default();
        let fresh = Self {
            config,
            news,
            held,
            known,
            recorded,
            drops,
            is_busy,
            spoilt,
            dropping,
            is_suspect,
            told,
            loads,
            is_loading,
            speed,
            has_failed,
        };
        (fresh, receiver)
    }

    /// The request is not held any more.
    pub(super) fn forget(&mut self, request: RequestId) {
        self.held.remove(&request);
    }

    /// Whether a record that is found may be one that is to go.
    fn is_in_doubt(&self) -> bool {
        self.dropping.is_some() || !self.spoilt.is_empty()
    }

    fn measure(&mut self, nbytes: u64, took: Duration) {
        let now = nbytes as f64 / (took.as_micros() as f64).max(1.0);
        self.speed = Some(self.speed.map_or(now, |before| before + RECENT * (now - before)));
    }

    /// Owners whose records stay: those who need no key, and all keys.
    pub(super) fn owners(&self) -> BTreeSet<u64> {
        let keys = self.config.as_ref().and_then(|config| config.keys.as_ref()).map(KeyRing::now);
        let keys = keys.iter().flat_map(|keys| keys.accounts()).map(|account| account.number());
        keys.chain([brigade_sched::Share::default().owner]).collect()
    }
}

impl Driver {
    pub(super) fn salt(&self) -> Option<Salt> {
        self.salt_of(self.line.as_ref()?)
    }

    /// The salt of the names of records; `None`: the line keeps no records.
    pub(super) fn salt_of(&self, line: &OpenLine) -> Option<Salt> {
        let config = self.prefixes.config.as_ref();
        config.filter(|_| line.states.keeps_prefixes()).map(|config| config.salt)
    }

    /// The same as [`Self::salt_of`], but `None` while a record that is found may be one that is to be dropped.
    pub(super) fn salt_to_find(&mut self, line: &OpenLine) -> Option<Salt> {
        self.take_spoilt();
        self.salt_of(line).filter(|_| !self.prefixes.is_in_doubt())
    }

    /// Notes the prompts whose numbers were bad: their records are to be dropped, and are not loaded any more.
    pub(super) fn take_spoilt(&mut self) {
        let spoilt = self.sched.take_spoilt();
        let prefixes = &mut self.prefixes;
        if prefixes.config.is_some() {
            prefixes.is_suspect |= !spoilt.is_empty();
            prefixes.spoilt.extend(spoilt);
        }
    }

    /// Asks the workers for records of a request's prompt, if they may have more of it than is in memory. Otherwise
    /// the request is returned.
    pub(super) fn look_up(&mut self, request: Request) -> Option<Request> {
        self.take_spoilt();
        let Some((salt, line)) = self.salt().zip(self.line.as_ref()) else { return Some(request) };
        let rows = request.prompt.len().saturating_sub(1) as u32;
        let begins = self.sched.begins_with(&request).filter(|begins| rows >= begins + LEAST_ROWS);
        let is_free = self.prefixes.held.len() < MAX_HELD && !self.prefixes.is_in_doubt();
        if begins.is_none() || !is_free {
            return Some(request);
        }
        let (id, epoch) = (request.id, line.epoch);
        let (access, news) = (line.states.clone(), self.prefixes.news.clone());
        let (space, owner, tokens) =
            (space_of(&request), request.share.owner, request.prompt.clone());
        self.prefixes.held.insert(id, request);
        task::spawn(async move {
            let found = async {
                let names = names(salt, space, owner, tokens).await?;
                let choice = access.find_prefix(&names).await?;
                Ok(choice.map(|choice| (names, choice)))
            };
            let late = |_| Err("workers did not answer in time which records they have".to_owned());
            let found = timeout(FIND_WITHIN, found).await.unwrap_or_else(late);
            // The driver may be gone; then nobody waits.
            let _ = news.send(PrefixNews::Found { epoch, request: id, found }).await;
        });
        None
    }

    /// Something was found, or dropped.
    pub(super) fn prefix_news(&mut self, news: PrefixNews) {
        self.take_spoilt();
        let is_up = |epoch: u64| self.line.as_ref().is_some_and(|line| line.epoch == epoch);
        match news {
            PrefixNews::Found { epoch, request, found } => {
                let found = found.unwrap_or_else(|why| {
                    tracing::debug!(
                        request = request.0,
                        why,
                        "it is not known whether workers have records of a request's prompt"
                    );
                    None
                });
                match found.filter(|_| is_up(epoch) && !self.prefixes.is_in_doubt()) {
                    Some((names, choice)) => {
                        self.prefixes.loads.push_back(Load { request, names, choice });
                        self.start_loads();
                    }
                    None => self.let_go(request),
                }
            }
            PrefixNews::Dropped { epoch, result } => {
                if let Err(why) = result {
                    tracing::warn!(
                        why,
                        "workers may not have deleted the records of dropped prefixes"
                    );
                }
                if is_up(epoch) {
                    (self.prefixes.is_busy, self.prefixes.dropping) = (false, None);
                    self.keep_prefixes();
                }
            }
        }
    }

    /// The scheduler hears of a request that was held.
    fn let_go(&mut self, id: RequestId) {
        let Some(request) = self.prefixes.held.remove(&id) else { return };
        self.step(Event::Submit(request));
        if let Some(live) = self.live.get_mut(&id) {
            live.taken();
        }
    }

    /// Loads what waits for it, one after the other, as long as that is quicker than to compute it.
    fn start_loads(&mut self) {
        while !self.prefixes.is_loading
            && let Some(load) = self.prefixes.loads.pop_front()
        {
            if self.prefixes.is_in_doubt() {
                self.let_go(load.request);
                continue;
            }
            let Some(request) = self.prefixes.held.get(&load.request) else { continue };
            let len = load.choice.len;
            // Another request may have computed it since.
            let begins = self.sched.begins_with(request).unwrap_or(len);
            let spares = len.saturating_sub(begins);
            let takes = self.prefixes.speed.map(|speed| load.choice.nbytes as f64 / speed);
            let reading = self.sched.reading_us(spares).map(|us| us as f64);
            let is_slower = takes.zip(reading).is_some_and(|(takes, reading)| takes > reading);
            if spares < LEAST_ROWS || is_slower {
                tracing::debug!(
                    request = load.request.0,
                    len,
                    begins,
                    is_slower,
                    "a prefix is not loaded from its records: computing it again takes less time"
                );
                self.let_go(load.request);
                continue;
            }
            let (kept, actions) = self.sched.open_kept_of(self.meter.now(), request, len);
            let id = load.request;
            let opened = kept.is_some();
            if let Some(kept) = kept {
                (self.prefixes.is_loading, self.prefixes.is_suspect) = (true, false);
                self.states.push(Due::Opened, kept, Transfer::LoadPrefix(Box::new(load)));
            }
            self.perform(actions);
            if !opened {
                self.let_go(id);
            }
        }
    }

    /// Fails a load whose records may be among those that had to be dropped since it began.
    pub(super) fn doubt(&mut self, loaded: &mut Loaded) {
        self.take_spoilt();
        if self.prefixes.is_suspect && loaded.result.is_ok() {
            loaded.result = Err("unusable numbers (such as NaN) were computed meanwhile, and the records may hold some of them".to_owned());
        }
    }

    /// A state is there, or is not; the scheduler knows.
    pub(super) fn prefix_loaded(&mut self, id: KeptId, loaded: Loaded) {
        let Loaded { request, len, nbytes, took, result } = loaded;
        self.prefixes.is_loading = false;
        metrics::prefix_loaded(result.as_ref().ok().map(|_| nbytes));
        match result {
            Ok(moved_bytes) => {
                self.prefixes.measure(nbytes, took);
                self.prefixes.known.insert(id);
                self.prefixes.recorded.insert(id);
                let ms = took.as_millis() as u64;
                tracing::debug!(
                    request = request.0,
                    len,
                    nbytes,
                    moved_bytes,
                    ms,
                    "a prefix was loaded"
                );
            }
            Err(why) => tracing::warn!(
                request = request.0,
                why,
                "a prefix cannot be loaded from its records: it is computed again"
            ),
        }
        self.let_go(request);
        self.start_loads();
    }

    /// A state is written, or is not; the scheduler knows.
    pub(super) fn prefix_saved(&mut self, id: KeptId, saved: Saved) {
        self.prefixes.is_busy = false;
        match saved.result {
            Ok(nbytes) => {
                self.prefixes.recorded.insert(id);
                metrics::prefix_saved(nbytes);
            }
            Err(why) if !self.sched.keeps_all(id, saved.len) => {
                // What is left of it may be written.
                self.prefixes.known.remove(&id);
                tracing::debug!(
                    why,
                    "a request needed the pages of a state that was being written"
                );
            }
            Err(why) if !self.prefixes.has_failed => {
                self.prefixes.has_failed = true;
                tracing::warn!(
                    why,
                    "a kept state cannot be written to records: it is computed again after it was evicted"
                );
            }
            Err(why) => tracing::debug!(why, "a kept state cannot be written to records"),
        }
        self.keep_prefixes();
    }

    /// Drops the records that are to be dropped, or else writes the next state.
    pub(super) fn keep_prefixes(&mut self) {
        self.take_spoilt();
        // A record that is being written would come after the drop, and a state that is loaded as well.
        let is_at_rest = !self.prefixes.is_busy && !self.prefixes.is_loading;
        if is_at_rest && let Some(next) = self.prefixes.drops.pop_front() {
            return self.drop_next(next);
        }
        let Some(salt) = self.salt() else { return };
        if self.prefixes.is_busy {
            return;
        }
        let owners = self.prefixes.owners();
        if let Some(spoilt) = self.prefixes.spoilt.pop_front() {
            self.prefixes.dropping = Some(spoilt.clone());
            self.drop_records(async move |access: Arc<dyn StateAccess>| {
                let names = names(salt, spoilt.space, 0, spoilt.tokens).await?;
                access.forget_prefix(&names).await
            });
        } else if self.prefixes.told.as_ref() != Some(&owners) {
            let keys = owners.iter().map(|owner| salt.owner(*owner)).collect();
            self.prefixes.told = Some(owners);
            self.drop_records(async move |access: Arc<dyn StateAccess>| {
                access.keep_prefixes_of(salt.realm(), keys).await
            });
        } else {
            self.save_next(salt);
        }
    }

    fn save_next(&mut self, salt: Salt) {
        let Some(of) = self.sched.unsaved(&self.prefixes.known) else { return };
        let sched = &self.sched;
        self.prefixes.known.retain(|id| sched.is_kept(*id));
        self.prefixes.recorded.retain(|id| sched.is_kept(*id));
        let Some(line) = &self.line else { return };
        let notices = line.states.notices_changes();
        let unchanged_since = self.states.newest().filter(|_| notices);
        let id = of.kept.id;
        let is_held = match unchanged_since {
            Some(_) => self.sched.begin_writing(id),
            // It must not go, since the stages would write what is in its place.
            None => self.sched.pin_kept(id),
        };
        if !is_held {
            return;
        }
        self.prefixes.is_busy = true;
        self.prefixes.known.insert(id);
        let newest = self.in_flight.keys().max().copied();
        let (due, kept) = (newest.map_or(Due::Now, Due::After), of.kept.clone());
        let save = Save { salt, of, unchanged_since };
        self.states.push(due, kept, Transfer::SavePrefix(Box::new(save)));
        self.start_transfers();
    }

    pub(super) fn drop_records<F>(
        &mut self,
        drop: impl FnOnce(Arc<dyn StateAccess>) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), String>> + Send,
    {
        let Some(line) = &self.line else { return };
        self.prefixes.is_busy = true;
        let (epoch, access, news) = (line.epoch, line.states.clone(), self.prefixes.news.clone());
        task::spawn(async move {
            let result = drop(access).await;
            // The driver may be gone; then nobody waits.
            let _ = news.send(PrefixNews::Dropped { epoch, result }).await;
        });
    }

    /// The line is gone, and its transfers with it. Requests that were held wait for the next line.
    pub(super) fn prefixes_line_gone(&mut self) {
        let prefixes = &mut self.prefixes;
        prefixes.known.clear();
        prefixes.recorded.clear();
        // Dropping the channels tells those that wait.
        prefixes.drops.clear();
        prefixes.loads.clear();
        (prefixes.is_busy, prefixes.is_loading, prefixes.told) = (false, false, None);
        // Some workers may have dropped it and some not.
        prefixes.spoilt.extend(prefixes.dropping.take());
        let held: Vec<RequestId> = prefixes.held.keys().copied().collect();
        held.into_iter().for_each(|request| self.let_go(request));
    }

    /// Logs how many kept states are lost with the process.
    pub(super) fn tell_unsaved(&self) {
        let n = self.salt().map_or(0, |_| self.sched.n_unsaved(&self.prefixes.known));
        if n > 0 {
            tracing::warn!(
                states = n,
                "the server ends before these kept states were written to records: they are computed again"
            );
        }
    }
}

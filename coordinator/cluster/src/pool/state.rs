//! The pool's state: workers, loans and wishes. Everything here is done under one lock, and nothing waits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_line::admin::NodeStatus;
use brigade_plan::{MAX_WORKERS, PlanError};
use brigade_proto::address::Address;
use brigade_proto::capability::Requirements;
use brigade_proto::limits::LEASE_MS;
use tokio::sync::{mpsc, watch};

use super::Demand;
use super::disks::Disks;
use super::lend::{self, Lack, Offer, WorkerId};
use super::nodes::{Nodes, promise};
use super::worker::{Case, Promise, SeatId, Wanted, Worker};
use crate::building::demands;
use crate::building::place::{self, PlaceError};
use crate::config::StageOptions;
use crate::members::conn::Conn;
use crate::members::departed::{Departed, REFUSED_FOR};
use crate::members::member::DOUBT_FOR;
use crate::members::node_disk::DiskReport;
use crate::members::node_memory::Report;

/// Workers that joined and have not shaken hands, at once: joining proves nothing.
const MAX_UNPROVEN: usize = 64;

/// Addresses under way to a line; a worker that finds no room there is lent a moment later.
const LOAN_QUEUE: usize = 2 * MAX_WORKERS;

/// For so long a worker that may read models' files is taken for one that needs its cache for a model, once it has refused it
/// for want of room there.
const NEEDS_CACHE_FOR: Duration = Duration::from_secs(600);

/// How long a line waits for a worker that is free or comes back, before idle models are unloaded for it.
const WAITS_FOR_OTHERS: Duration = Duration::from_secs(3);

/// For so long after a server's start a line that goes on waits for workers that have its layers, and no line takes those that
/// another one lacks: workers find a new coordinator within this time, when the lease of the one before is over.
pub(super) const HOLDERS_COME_WITHIN: Duration = Duration::from_millis(LEASE_MS + 3_000);

/// The workers that a line lacks.
#[derive(Clone, Debug, PartialEq)]
pub struct Want {
    /// Workers that were lent to it and do not count.
    pub without: Vec<Address>,
    /// Workers that it should have, with those that count.
    pub at_least: usize,
    /// Whether it accepts fewer, if the model fits on them.
    pub makes_do: bool,
    /// Positions that a sequence must have; `None`: the least that the options say.
    pub least_ctx: Option<u32>,
}

impl Want {
    /// The smallest loan that the line accepts.
    fn made_do(self) -> Self {
        let at_least = if self.makes_do { 1 } else { self.at_least };
        Self { at_least, ..self }
    }
}

/// Workers that are lent to a line.
#[derive(Debug)]
struct Loan {
    chosen: Vec<WorkerId>,
    /// What each worker of the line may take; empty where none shares anything.
    promised: Vec<(WorkerId, Promise)>,
}

/// How a worker comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returned {
    /// The line does not need it.
    Spare,
    /// The worker broke the line.
    Doubted,
    /// The worker refused the line, or could not be reached.
    Refused,
}

#[derive(Debug)]
struct Line {
    demand: Demand,
    needs: Requirements,
    loans: mpsc::Sender<Address>,
    want: Option<Want>,
    wants_since: Option<Instant>,
    why: String,
    /// Whether only room in caches is lacking.
    lacks_disk: bool,
}

impl Line {
    fn new(demand: Demand, loans: mpsc::Sender<Address>) -> Self {
        let needs = demands::requirements(&demand.model, &demand.options);
        let (want, wants_since, why, lacks_disk) = Default::default();
        Self { demand, needs, loans, want, wants_since, why, lacks_disk }
    }

    fn model(&self) -> blake3::Hash {
        self.demand.model.header_hash
    }

    /// The line, with this seat, as one that workers are looked for.
    fn wanted<'a>(&'a self, seat: SeatId, search: Search<'a>) -> Wanted<'a> {
        let Search { gone, ever, now } = search;
        let stored = self.demand.model.stored().all();
        let case = Case { seat, gone, now };
        Wanted { case, needs: &self.needs, model: self.model(), stored, ever }
    }
}

/// What a line is looked for with.
#[derive(Clone, Copy, Debug)]
struct Search<'a> {
    /// Seats that would be given up.
    gone: &'a [SeatId],
    /// Whether it is only asked where the line could ever be, with empty caches.
    ever: bool,
    now: Instant,
}

/// Workers, lines and loans.
#[derive(Debug)]
pub struct State {
    began: Instant,
    workers: BTreeMap<WorkerId, Worker>,
    lines: BTreeMap<SeatId, Line>,
    next: usize,
    /// Workers that belong to lines by name.
    named: Vec<Address>,
    departed: Departed,
    /// The models for which workers of a folder were seen to need it, and until when that is believed.
    stores: BTreeMap<(u64, [u8; 32]), Instant>,
    changes: watch::Sender<u64>,
    connected: watch::Sender<Arc<[Conn]>>,
}

impl State {
    pub fn new(named: Vec<Address>) -> Self {
        Self {
            began: Instant::now(),
            workers: BTreeMap::new(),
            lines: BTreeMap::new(),
            next: 0,
            named,
            departed: Departed::default(),
            stores: BTreeMap::new(),
            changes: watch::channel(0).0,
            connected: watch::channel(Arc::default()).0,
        }
    }

    /// All workers that are connected, lent ones too.
    pub fn conns(&self) -> watch::Receiver<Arc<[Conn]>> {
        self.connected.subscribe()
    }

    fn conns_changed(&self) {
        let there = self.workers.values().filter_map(|worker| worker.conn.clone());
        self.connected.send_replace(there.collect());
    }

    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn number(&mut self) -> usize {
        self.next += 1;
        self.next
    }

    // Workers come and go.

    /// A worker joined; `Some`: it is to be dialled.
    pub fn joined(&mut self, address: &Address, now: Instant) -> Option<WorkerId> {
        if self.named.contains(address) || self.departed.was_refused(address, now) {
            return None;
        }
        if let Some((id, worker)) = self.workers.iter().find(|(_, w)| w.address == *address) {
            if let Some(line) = worker.lent.and_then(|seat| self.lines.get(&seat)) {
                // It tries again at once. A full queue means that there is much to try already.
                let _ = line.loans.try_send(address.clone());
            }
            return worker.conn.is_none().then_some(*id);
        }
        let unproven = self.workers.values().filter(|w| w.conn.is_none()).count();
        if unproven >= MAX_UNPROVEN || self.workers.len() >= MAX_WORKERS {
            // It joins again by itself.
            tracing::debug!(worker = %address, unproven, "too many workers are joining");
            return None;
        }
        let id = self.number();
        self.workers.insert(id, Worker::new(address.clone()));
        Some(id)
    }

    /// A worker completed the handshake. False if it has been forgotten since: it must join again.
    pub fn connected(&mut self, id: WorkerId, conn: Conn, now: Instant) -> bool {
        let Some(worker) = self.workers.get_mut(&id) else { return false };
        if worker.lent.is_none() {
            tracing::info!(worker = conn.name(), address = %worker.address, "worker joined the pool");
        }
        if self.departed.doubts(&worker.address, now) {
            worker.doubted_until.get_or_insert(now + DOUBT_FOR);
        }
        worker.conn = Some(conn);
        self.conns_changed();
        self.changed(now);
        true
    }

    /// A worker cannot be reached, or will not do; whether that is news.
    pub fn not_connected(&mut self, id: WorkerId, why: &str, now: Instant) -> bool {
        let Some(worker) = self.workers.get(&id) else { return false };
        if worker.lent.is_some() {
            // Its line knows more about it.
            return false;
        }
        let is_news = self.departed.refused(&worker.address, why, now);
        self.workers.remove(&id);
        is_news
    }

    /// A worker went silent. One that is lent stays its line's, until that gives it up.
    pub fn silent(&mut self, id: WorkerId, why: &str) {
        let Some(worker) = self.workers.get_mut(&id) else { return };
        let conn = worker.conn.take();
        if worker.lent.is_none() {
            tracing::info!(worker = conn.as_ref().map(Conn::name), why, "worker left the pool");
            self.workers.remove(&id);
        }
        self.conns_changed();
    }

    // Lines come and go.

    pub fn seat(&mut self, demand: Demand) -> (SeatId, mpsc::Receiver<Address>) {
        let id = SeatId(self.number());
        let (loans, lent) = mpsc::channel(LOAN_QUEUE);
        self.lines.insert(id, Line::new(demand, loans));
        (id, lent)
    }

    /// # Errors
    /// The error says what is lacking.
    pub fn reserve(&mut self, demand: Demand) -> Result<(SeatId, mpsc::Receiver<Address>), String> {
        let now = Instant::now();
        let (id, lent) = self.seat(demand);
        match self.find(id, &self.first_want(id), Search { gone: &[], ever: false, now }) {
            Ok(loan) => self.lend(id, &loan),
            Err(lack) => {
                self.lines.remove(&id);
                return Err(self.in_words(id, &lack.why));
            }
        }
        Ok((id, lent))
    }

    /// # Errors
    /// The error says what is lacking.
    pub fn in_the_way(&mut self, demand: &Demand, seats: &[SeatId]) -> Result<Vec<SeatId>, String> {
        let (id, _) = self.seat(demand.clone());
        let found = self.fewest(id, &self.first_want(id), seats, Instant::now());
        self.lines.remove(&id);
        found.map_err(|lack| lack.why)
    }

    /// Why a model never fits the caches of the workers that there are, whatever goes for it.
    pub fn never(&mut self, demand: &Demand, now: Instant) -> Option<String> {
        let (id, _) = self.seat(demand.clone());
        let never = self.never_of(id, now);
        self.lines.remove(&id);
        never
    }

    /// The same of a line that has a seat.
    pub fn never_of(&self, id: SeatId, now: Instant) -> Option<String> {
        let line = self.lines.get(&id)?;
        let all_are_there = self.workers.values().all(|worker| worker.conn.is_some());
        let have_come = now.saturating_duration_since(self.began) >= HOLDERS_COME_WITHIN;
        let seats: Vec<SeatId> = self.lines.keys().copied().collect();
        let search = Search { gone: &seats, ever: true, now };
        let disks = self.disks(&line.wanted(id, search));
        let are_limits = self.workers.keys().any(|worker| disks.facts(*worker, &[]).is_some());
        if !(all_are_there && have_come && are_limits) {
            return None;
        }
        let lack = self.find(id, &self.first_want(id), search).err()?;
        lack.is_disk.then(|| {
            let words = self.words_of(id);
            format!("{}{words}", lack.why)
        })
    }

    /// Whether a line lacks room in caches, and nothing else.
    pub fn lacks_disk(&self, id: SeatId) -> bool {
        self.lines.get(&id).is_some_and(|line| line.lacks_disk)
    }

    pub fn helps_others(&self, seats: &[SeatId], now: Instant) -> Vec<SeatId> {
        let lacks = |(id, line): &(&SeatId, &Line)| {
            let long = line.wants_since.is_some_and(|at| now - at >= WAITS_FOR_OTHERS);
            long && !line.why.is_empty() && !seats.contains(id)
        };
        let helped = |(id, line): (&SeatId, &Line)| {
            let want = line.want.clone()?.made_do();
            self.fewest(*id, &want, seats, now).ok()
        };
        self.lines.iter().filter(lacks).find_map(helped).unwrap_or_default()
    }

    /// The fewest of these seats that must be given up for a line, the first ones first.
    fn fewest(
        &self,
        id: SeatId,
        want: &Want,
        seats: &[SeatId],
        now: Instant,
    ) -> Result<Vec<SeatId>, Lack> {
        let found = |gone: &[SeatId]| self.find(id, want, Search { gone, ever: false, now });
        lend::fewest(seats, |go| found(go).map(drop))
    }

    fn first_want(&self, id: SeatId) -> Want {
        let at_least = self.lines.get(&id).map_or(1, |line| line.demand.at_least);
        Want { without: Vec::new(), at_least, makes_do: false, least_ctx: None }
    }

    pub fn want(&mut self, id: SeatId, want: Option<Want>) {
        let Some(line) = self.lines.get_mut(&id).filter(|line| line.want != want) else { return };
        let now = Instant::now();
        line.why.clear();
        // A wish that changes a little keeps its age.
        line.wants_since = want.as_ref().map(|_| line.wants_since.unwrap_or(now));
        line.want = want;
        self.match_all(now);
    }

    pub fn why(&self, id: SeatId) -> String {
        self.lines.get(&id).map(|line| line.why.clone()).unwrap_or_default()
    }

    /// A worker would not take its stage of a line. `of_disk`: its cache has no room.
    pub fn declines(&mut self, id: SeatId, address: &Address, why: &str, of_disk: bool) {
        let now = Instant::now();
        let Some(worker) = self.lent_to(id, address) else { return };
        worker.declines(id, why, now);
        let report = worker.conn.as_ref().and_then(|conn| DiskReport::of(conn, now));
        let folder = report.filter(|_| of_disk).map(|report| report.folder);
        let model = self.lines.get(&id).map(|line| *line.model().as_bytes());
        if let Some(of) = folder.zip(model) {
            self.stores.insert(of, now + NEEDS_CACHE_FOR);
        }
    }

    pub fn begins_to_return(&mut self, id: SeatId, address: &Address) {
        if let Some(worker) = self.lent_to(id, address) {
            worker.returns = true;
        }
    }

    pub fn is_back(&mut self, id: SeatId, address: &Address, how: Returned) {
        let now = Instant::now();
        let Some(worker) = self.lent_to(id, address) else { return };
        worker.comes_back(now);
        match how {
            Returned::Spare => {}
            Returned::Doubted => worker.doubted_until = Some(now + DOUBT_FOR),
            Returned::Refused => drop(worker.refused.insert(id, now + REFUSED_FOR)),
        }
        let is_gone = worker.conn.is_none();
        if is_gone && how == Returned::Doubted {
            self.departed.left_doubted(address, now);
        }
        self.workers
            .retain(|_, worker| worker.lent.is_some() || worker.address != *address || !is_gone);
        self.changed(now);
    }

    fn lent_to(&mut self, id: SeatId, address: &Address) -> Option<&mut Worker> {
        self.workers.values_mut().find(|w| w.lent == Some(id) && w.address == *address)
    }

    /// A line has ended: its workers have nothing of it any more.
    pub fn leave(&mut self, id: SeatId) {
        let now = Instant::now();
        self.lines.remove(&id);
        for worker in self.workers.values_mut() {
            worker.forget(id);
            if worker.lent == Some(id) {
                worker.comes_back(now);
            }
        }
        self.workers.retain(|_, worker| worker.lent.is_some() || worker.conn.is_some());
        self.changed(now);
    }

    // Lending.

    fn changed(&mut self, now: Instant) {
        self.match_all(now);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Looks again, at what a moment's passing changes.
    pub fn look_again(&mut self, now: Instant) {
        self.stores.retain(|_, until| *until > now);
        let mut forgiven = false;
        for worker in self.workers.values_mut() {
            forgiven |= worker.is_forgiven(now);
        }
        if forgiven { self.changed(now) } else { self.match_all(now) }
    }

    /// Lends to all lines that want workers: to those that were up first, and then in the order of their seats.
    fn match_all(&mut self, now: Instant) {
        let of = |(id, line): (&SeatId, &Line)| line.want.clone().map(|want| (*id, want));
        let mut wants: Vec<(SeatId, Want)> = self.lines.iter().filter_map(of).collect();
        wants.sort_by_key(|(id, want)| (!want.makes_do, *id));
        for (id, want) in wants {
            let search = Search { gone: &[], ever: false, now };
            let mut found = self.find(id, &want, search);
            if found.is_err() && want.makes_do {
                found = self.find(id, &want.made_do(), search);
            }
            let (why, lacks_disk) = match found {
                Ok(loan) => {
                    self.lend(id, &loan);
                    (String::new(), false)
                }
                Err(lack) => (self.in_words(id, &lack.why), lack.is_disk),
            };
            if let Some(line) = self.lines.get_mut(&id) {
                (line.why, line.lacks_disk) = (why, lacks_disk);
            }
        }
    }

    /// What workers have said that would not take a stage of a line.
    fn words_of(&self, id: SeatId) -> String {
        let mut words: Vec<&str> = self.workers.values().filter_map(|w| w.declined(id)).collect();
        words.sort_unstable();
        words.dedup();
        words.into_iter().map(|why| format!("; {why}")).collect()
    }

    fn in_words(&self, id: SeatId, why: &str) -> String {
        let there = self.workers.values().filter(|worker| worker.conn.is_some());
        let (n, free) = (there.clone().count(), there.filter(|w| w.lent.is_none()).count());
        let workers = if n == 1 { "worker" } else { "workers" };
        format!(
            "{n} {workers} joined, of which {free} belong to no other model: {why}{}",
            self.words_of(id)
        )
    }

    fn lend(&mut self, id: SeatId, loan: &Loan) {
        let Some(line) = self.lines.get(&id) else { return };
        for (worker, bytes) in &loan.promised {
            if let Some(worker) = self.workers.get_mut(worker) {
                worker.promised = *bytes;
            }
        }
        for worker in &loan.chosen {
            let Some(worker) = self.workers.get_mut(worker) else { continue };
            if line.loans.try_send(worker.address.clone()).is_ok() {
                worker.lent = Some(id);
                let (model, name) =
                    (line.demand.model.name(), worker.conn.as_ref().map(Conn::name));
                tracing::info!(worker = name, model, "a worker of the pool is lent");
            }
        }
    }

    /// The workers to lend to a line.
    fn find(&self, id: SeatId, want: &Want, search: Search) -> Result<Loan, Lack> {
        let line = self.lines.get(&id).ok_or_else(|| "the line has ended".to_owned())?;
        let Search { gone, now, .. } = search;
        let counts = |w: &Worker| w.lent == Some(id) && !w.returns && w.conn.is_some();
        let holds = self
            .workers
            .iter()
            .filter(|(_, w)| counts(w) && !want.without.contains(&w.address) && !search.ever);
        let holds: Vec<WorkerId> = holds.map(|(id, _)| *id).collect();
        let may = |w: &Worker| w.lent.is_none_or(|seat| gone.contains(&seat));
        let wanted = line.wanted(id, search);
        let (nodes, disks) = (self.nodes(&wanted.case), self.disks(&wanted));
        let offers = self
            .workers
            .iter()
            .filter(|(_, worker)| may(worker) && self.suits(worker, id, gone, now));
        let offer = |(of, worker): (&WorkerId, &Worker)| worker.offer(*of, &wanted, &nodes, &disks);
        let offers: Vec<Offer> = offers.filter_map(offer).collect();
        let Demand { model, options, .. } = &line.demand;
        let least_ctx = want.least_ctx.or(options.least_ctx);
        let options = StageOptions { least_ctx, ..options.clone() };
        let plan = |ids: &[WorkerId]| {
            let conns = ids.iter().filter_map(|id| self.workers.get(id)?.conn.as_ref());
            let facts = ids.iter().map(|id| (nodes.facts(*id, ids), disks.facts(*id, ids)));
            let (nodes, disks): (Vec<_>, Vec<_>) = facts.unzip();
            place::plan_over_nodes(model, conns, &nodes, &disks, &options).map_err(|error| Lack {
                why: error.to_string(),
                is_disk: matches!(error, PlaceError::Plan(PlanError::DiskLacks(_))),
            })
        };
        let mut fits = |ids: &[WorkerId]| plan(ids).map(drop);
        let chosen = lend::choose(&offers, &holds, want.at_least, &mut fits)?;
        let all = [&holds[..], &chosen].concat();
        let shares = |id: &WorkerId| nodes.has(*id) || disks.facts(*id, &all).is_some();
        if !all.iter().any(shares) {
            return Ok(Loan { chosen, promised: Vec::new() });
        }
        let promised = plan(&all)?.stages.into_iter().map(|stage| {
            let id = all[stage.worker];
            let stored = disks.facts(id, &all).map_or(0, |_| stage.stored);
            (id, Promise { memory: promise(&stage), stored })
        });
        Ok(Loan { chosen, promised: promised.collect() })
    }

    /// The memory of the workers' nodes, for a line.
    fn nodes(&self, case: &Case) -> Nodes {
        let seen = self.workers.iter().filter_map(|(of, worker)| {
            let report = Report::of(worker.conn.as_ref()?, case.now)?;
            Some((*of, report, worker.does(case, &report)))
        });
        Nodes::new(seen.collect())
    }

    /// The workers' caches, for a line.
    fn disks(&self, to: &Wanted) -> Disks {
        let needs = |folder: u64| self.stores.contains_key(&(folder, *to.model.as_bytes()));
        let sharers = self.workers.iter().filter_map(|(id, worker)| {
            let of = worker.lent.and_then(|seat| Some(self.lines.get(&seat)?.model()));
            worker.sharer(*id, &to.case, of, needs)
        });
        Disks::new(sharers.collect(), to.model, to.ever)
    }

    /// Whether a worker may be lent to a line as long as workers still come back to a new coordinator, if these `seats` were
    /// given up: one that has layers which another line lacks is that line's, and a line that goes on takes its own.
    fn suits(&self, worker: &Worker, id: SeatId, seats: &[SeatId], now: Instant) -> bool {
        if now.saturating_duration_since(self.began) >= HOLDERS_COME_WITHIN {
            return true;
        }
        // What it has is not known before its first heartbeat.
        let Some(beat) = worker.conn.as_ref().and_then(|conn| conn.pulse().last()) else {
            return false;
        };
        let held = beat.reply().held_layers.as_ref();
        let is_of = |line: &Line| {
            let wanted = line.demand.model.header_hash;
            held.is_some_and(|held| held.model[..] == wanted.as_bytes()[..])
        };
        let lacks = |(seat, line): (&SeatId, &Line)| {
            *seat != id && !seats.contains(seat) && line.want.is_some() && is_of(line)
        };
        let own = self.lines.get(&id);
        let goes_on = own.is_some_and(|line| line.demand.goes_on);
        own.is_some_and(is_of) || !goes_on && !self.lines.iter().any(lacks)
    }

    pub fn spares(&self) -> Vec<NodeStatus> {
        let is_spare = |worker: &&Worker| worker.lent.is_none();
        self.workers.values().filter(is_spare).filter_map(Worker::status).collect()
    }
}

//! A worker of the pool: whom it is lent to, whom it refused, and what it could do for another line.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use brigade_line::admin::{NodeState, NodeStatus};
use brigade_proto::address::Address;
use brigade_proto::capability::Requirements;
use brigade_worker::machine::ledger::Amount;

use super::disks::{Disks, Sharer, Uses};
use super::lend::{Offer, WorkerId, parts};
use super::nodes::{Does, Nodes};
use crate::members::conn::Conn;
use crate::members::member::Known;
use crate::members::node_disk::DiskReport;
use crate::members::node_memory::{self, Report};

/// How old a report may be that a stage made before it came back, though it arrived later.
const REPORTS: Duration = Duration::from_secs(2);

/// The same of reports about disks, which are looked at once a second beside heartbeats.
const DISK_REPORTS: Duration = Duration::from_secs(3);

/// How long a worker that would not take a line's stage is not lent to it again: so long at first, and twice as long each
/// time ...
const DECLINED_FOR: Duration = Duration::from_secs(1);
/// ... up to this.
const DECLINED_AT_MOST: Duration = Duration::from_secs(60);

/// Number of a seat; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeatId(pub(super) usize);

/// A line's refusal by a worker.
#[derive(Debug)]
struct Declined {
    /// How often it was refused.
    times: u32,
    /// `None`: it is tried again.
    until: Option<Instant>,
    /// The worker's own words.
    why: String,
}

/// What is lent to a worker's line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Promise {
    /// Bytes of its node's memory.
    pub memory: Amount,
    /// Bytes of its model that it needs in its cache.
    pub stored: u64,
}

/// When workers are looked for, and who has none then.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The seat of the line for which they are looked for.
    pub seat: SeatId,
    /// Seats that would be given up for it.
    pub gone: &'a [SeatId],
    /// The time.
    pub now: Instant,
}

/// A line for which workers are looked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its seat, and those that would be given up for it.
    pub case: Case<'a>,
    /// What it requires of every worker.
    pub needs: &'a Requirements,
    /// Names its model.
    pub model: blake3::Hash,
    /// Bytes of all its weights in caches.
    pub stored: u64,
    /// Whether it is only asked where the line could ever be: who is busy for a moment counts then.
    pub ever: bool,
}

/// A worker of the pool.
#[derive(Debug)]
pub struct Worker {
    /// Where it is dialled.
    pub address: Address,
    /// `None`: it is being dialled, or was lost while it was lent.
    pub conn: Option<Conn>,
    /// The line that has it, by its seat.
    pub lent: Option<SeatId>,
    /// What the line was promised of it.
    pub promised: Promise,
    /// When it last came back: what it reported before counts no more.
    came_back: Option<Instant>,
    /// Whether its line is giving it back.
    pub returns: bool,
    /// Until when it is lent only where others do not suffice.
    pub doubted_until: Option<Instant>,
    /// The lines that could not use it, and until when it is not lent to each of them again.
    pub refused: BTreeMap<SeatId, Instant>,
    /// The lines whose stage it would not take.
    declined: BTreeMap<SeatId, Declined>,
}

impl Worker {
    /// One that has joined at this address.
    pub fn new(address: Address) -> Self {
        Self {
            address,
            conn: None,
            lent: None,
            promised: Promise::default(),
            came_back: None,
            returns: false,
            doubted_until: None,
            refused: BTreeMap::new(),
            declined: BTreeMap::new(),
        }
    }

    /// The worker as an offer to a line; `None`: it cannot be lent to it.
    pub fn offer(&self, id: WorkerId, to: &Wanted, nodes: &Nodes, disks: &Disks) -> Option<Offer> {
        let conn = self.conn.as_ref()?;
        let beat = conn.pulse().last();
        let drains = beat.as_ref().is_some_and(|beat| beat.reply().draining);
        let layers = beat.as_ref().and_then(|beat| beat.reply().held_layers.as_ref());
        let has_layers = layers.is_some_and(|held| held.model[..] == to.model.as_bytes()[..]);
        let is_put_off = self.declined.get(&to.case.seat).is_some_and(|d| d.until.is_some());
        let is_away =
            drains || self.refused.contains_key(&to.case.seat) || self.returns || is_put_off;
        if is_away && !to.ever || conn.check(to.needs).is_err() {
            return None;
        }
        let doubted = self.doubted_until.is_some_and(|until| until > to.case.now);
        let node = nodes.facts(id, &[id]);
        let memory = node.map_or(conn.capabilities().memory_limit, |node| node.left);
        let parts = parts(to.stored, disks.facts(id, &[id]).map(|disk| disk.left));
        let node = node.map(|node| node.node);
        Some(Offer { id, memory, has_layers, doubted, node, parts })
    }

    /// Its line has ended, or does not need it: it has given back what it had.
    pub fn comes_back(&mut self, now: Instant) {
        (self.lent, self.returns, self.promised) = (None, false, Promise::default());
        self.came_back = Some(now);
    }

    /// It would not take a stage of this line.
    pub fn declines(&mut self, seat: SeatId, why: &str, now: Instant) {
        let times = self.declined.get(&seat).map_or(0, |declined| declined.times);
        let pause = DECLINED_FOR.saturating_mul(1 << times.min(16)).min(DECLINED_AT_MOST);
        let (until, why) = (Some(now + pause), why.to_owned());
        self.declined.insert(seat, Declined { times: times.saturating_add(1), until, why });
    }

    /// Why it would not take a stage of this line, in its own words.
    pub fn declined(&self, seat: SeatId) -> Option<&str> {
        self.declined.get(&seat).map(|declined| declined.why.as_str())
    }

    /// Nothing that it did for a line counts any more.
    pub fn forget(&mut self, seat: SeatId) {
        self.refused.remove(&seat);
        self.declined.remove(&seat);
    }

    /// Whether a time is over now for which it was not lent.
    pub fn is_forgiven(&mut self, now: Instant) -> bool {
        let is_over = |until: &mut Instant| *until <= now;
        let mut forgiven = self.doubted_until.take_if(is_over).is_some();
        let before = self.refused.len();
        self.refused.retain(|_, until| *until > now);
        forgiven |= self.refused.len() < before;
        for declined in self.declined.values_mut() {
            forgiven |= declined.until.take_if(is_over).is_some();
        }
        forgiven
    }

    /// What it does while a line is planned that has not got it.
    pub fn does(&self, case: &Case, report: &Report) -> Does {
        match self.lent {
            Some(seat) if case.gone.contains(&seat) => Does::ComesBack,
            // What it has beside its next line goes before that begins.
            Some(seat) if seat == case.seat => Does::ComesBack,
            Some(_) => Does::Serves(self.promised.memory),
            None if self.was_lent(report.ago.max(REPORTS), case.now) => Does::ComesBack,
            None => Does::Nothing,
        }
    }

    /// Whether it came back within this time.
    fn was_lent(&self, within: Duration, now: Instant) -> bool {
        self.came_back.is_some_and(|back| now.saturating_duration_since(back) < within)
    }

    /// The worker as one that has a cache. `model`: names the model of the line that has it. `needs`: whether it was seen to need
    /// its cache for the model that is planned.
    pub fn sharer(
        &self,
        id: WorkerId,
        case: &Case,
        model: Option<blake3::Hash>,
        needs: impl Fn(u64) -> bool,
    ) -> Option<Sharer> {
        let report = DiskReport::of(self.conn.as_ref()?, case.now)?;
        let needs = !report.reads_files || needs(report.folder);
        let uses = match (self.lent, model) {
            (Some(seat), _) if case.gone.contains(&seat) || seat == case.seat => Uses::ComesBack,
            (Some(_), Some(model)) => Uses::Serves { stored: self.promised.stored, model },
            _ if self.was_lent(report.ago.max(DISK_REPORTS), case.now) => Uses::ComesBack,
            _ => Uses::Nothing,
        };
        Some(Sharer { id, report, uses, needs })
    }

    /// The worker as a spare, for people.
    pub fn status(&self) -> Option<NodeStatus> {
        let conn = self.conn.as_ref()?;
        let known = Known::of(conn);
        let beat = conn.pulse().last();
        let node_memory = node_memory::share_of(conn);
        let ago = |ago: Duration| ago.as_millis() as u64;
        Some(NodeStatus {
            name: known.name,
            address: known.address,
            key: known.key,
            state: NodeState::Spare,
            heard_ms_ago: beat.map(|beat| ago(beat.ago(Instant::now()))),
            memory_limit: Some(known.memory_limit),
            node_memory,
            disk: node_memory::disk_of(conn),
            gb_per_second: Some(known.gb_per_second),
            gop_per_second: Some(known.gop_per_second),
            products: known.products,
            device: Some(known.device),
            ..NodeStatus::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_refuses_again_and_again_is_asked_ever_more_rarely() {
        let (mut worker, seat) = (Worker::new("127.0.0.1:1".parse().unwrap()), SeatId(1));
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            worker.declines(seat, "no room", now);
            let begin = now;
            while !worker.is_forgiven(now) {
                now += DECLINED_FOR;
            }
            pauses.push((now - begin).as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!((worker.declined(seat), worker.declined(SeatId(2))), (Some("no room"), None));
        worker.forget(seat);
        assert_eq!(worker.declined(seat), None);
    }
}

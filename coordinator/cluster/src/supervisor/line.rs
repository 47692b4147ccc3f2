//! The supervisor's part about the line: building it, hearing that it broke, and deciding which members are
//! not trusted with the next one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{GiveUp, Line, Supervisor};
use crate::building::build::{self, BuildError, Built};
use crate::config::Patience;
use crate::members::conn::{Conn, Present, WorkerError};
use crate::members::member::{BROKE, BROKE_BADLY, Member};
use crate::members::placed_stage::Identity;
use crate::members::roll;
use crate::reconcile::MemberId;
use crate::watch::{self, Culprit};
use brigade_line::measured::metrics;
use brigade_line::stages::link::{Fault, LineEvent};

/// Pause before a line is built again after a failure that no worker is to blame for; it doubles while
/// lines stay up for less than [`STANDS_AFTER`] ...
const BUILD_AGAIN: Duration = Duration::from_millis(250);

/// ... up to this.
const BUILD_AGAIN_AT_MOST: Duration = Duration::from_secs(2);

/// A line that was up this long stands: the next failure is the first again.
const STANDS_AFTER: Duration = Duration::from_secs(10);

/// Lines in a row that must fail soon, with all who are on them looking well, before the newest is left out.
const SUSPICIOUS: u32 = 2;

impl Supervisor {
    pub(super) fn build(&mut self, who: Vec<MemberId>) {
        let mut options = self.ends.config.stage.clone();
        options.least_ctx = self.change.as_ref().map(|change| change.n_ctx);
        let ordered = self.ordered.take();
        let who = match ordered.filter(|o| o.who.iter().all(|id| who.contains(id))) {
            Some(ordered) => {
                options.cut = Some(ordered.cut);
                ordered.who
            }
            None => who,
        };
        let conn = |id: &MemberId| Some((*id, self.members.get(id)?.conn()?.clone()));
        let conns: Vec<(MemberId, Conn)> = who.iter().filter_map(conn).collect();
        // An epoch is this coordinator's own: what a worker claims to have seen of it cannot be above it.
        for (_, conn) in conns.iter().filter(|(_, conn)| conn.last_epoch() > self.epoch) {
            let (worker, claimed, begun) = (conn.name(), conn.last_epoch(), self.epoch);
            tracing::warn!(
                worker,
                claimed,
                begun,
                "a worker claims an epoch that was never begun: the claim is ignored"
            );
        }
        self.epoch = self.ends.own_name.next_epoch();
        let names = roll::names(&self.members, &who);
        tracing::info!(epoch = self.epoch, workers = names, "building a line");
        self.progress(format!("placing layers on {names}"));
        let order = build::Order {
            conns,
            model: self.ends.model.clone(),
            options,
            identity: Identity {
                epoch: self.epoch,
                coordinator_id: self.ends.coordinator_id.clone(),
            },
            before: self.before(),
            holders: self.all_conns(),
            present: self.present(),
            events: self.ends.events.clone(),
        };
        self.said.clear();
        self.line = Line::Building { who };
        self.building.spawn(build::build(order));
    }

    /// Lists of workers that are connected: its own, and those of the pool, which other lines may have.
    fn present(&self) -> Present {
        let of_pool = self.ends.seat.iter().map(|seat| seat.conns());
        [self.present.subscribe()].into_iter().chain(of_pool).collect()
    }

    pub(super) async fn built(&mut self, built: Built) {
        let Built { mut line, stages, read_bytes } = built;
        for (stage, placed) in stages.iter().enumerate() {
            if let Some(member) = self.members.get_mut(&placed.member) {
                member.serves();
                self.heartbeats.listen_on_line(placed.member, &placed.conn, self.epoch, stage);
            }
        }
        let layers = stages.iter().map(|placed| placed.layers.clone()).collect();
        let paces = stages.iter().map(|placed| placed.pace).collect();
        let stages: Vec<MemberId> = stages.into_iter().map(|placed| placed.member).collect();
        self.failed.clear();
        self.goal.was_up = true;
        self.goal.last_line = stages.len();
        let names = |id: &MemberId| self.members.get(id).map(Member::name).unwrap_or_default();
        metrics::line_up(stages.iter().map(names));
        let workers = roll::names(&self.members, &stages);
        let roll = roll::roll(&self.members, Some(&stages));
        let spare = (!roll.spare.is_empty()).then(|| roll::list(roll.spare.into_iter()));
        let context = line.spec.max_positions;
        tracing::info!(
            epoch = self.epoch,
            stages = stages.len(),
            workers,
            spare,
            context,
            "line is up"
        );
        line.settled = Some(self.changed(stages.len(), read_bytes));
        let n_ctx = line.spec.max_positions;
        let (stale, since) = (line.stale.clone(), Instant::now());
        self.line = Line::Up { stages, layers, paces, stale, n_ctx, since };
        // An error means that the driver has ended; `stop` follows.
        let _ = self.ends.events.send(LineEvent::Up(Box::new(line))).await;
    }

    pub(super) async fn not_built(&mut self, error: BuildError) -> Result<(), GiveUp> {
        let Line::Building { who } = &self.line else { return Ok(()) };
        let who = who.clone();
        self.check_model()?;
        let impatient = self.ends.config.patience == Patience::FailFast;
        match error {
            BuildError::Workers(failed) => {
                self.line = Line::Down { again_at: Instant::now() };
                let is_refused = failed.iter().any(|(_, error)| error.is_refusal());
                for (id, error) in failed {
                    self.cannot_build(id, error).await?;
                }
                if is_refused && !self.goal.was_up {
                    self.give_all_back();
                }
            }
            BuildError::Open(error) if impatient => return Err(GiveUp(error.to_string())),
            BuildError::Open(error) => {
                tracing::warn!(%error, "the line did not open");
                let culprits = watch::silent(&self.members, &who, None).await;
                self.line_broke(error.to_string(), culprits).await;
            }
            BuildError::Other(why) if !self.goal.was_up => return Err(GiveUp(why)),
            BuildError::Other(why) => {
                tracing::warn!(why, "the line could not be built");
                self.line = Line::Down { again_at: Instant::now() + BUILD_AGAIN_AT_MOST };
            }
        }
        Ok(())
    }

    /// A call to one worker failed while the line was built.
    pub(super) async fn cannot_build(
        &mut self,
        id: MemberId,
        error: WorkerError,
    ) -> Result<(), GiveUp> {
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        let (worker, why) = (member.name(), error.to_string());
        if self.failed.get(&worker) == Some(&why) {
            tracing::debug!(%error, "a worker failed again while the line was built");
        } else {
            tracing::warn!(%error, "a worker failed while the line was built");
            self.failed.insert(worker, why);
        }
        let now = Instant::now();
        match &error {
            WorkerError::Stalled { .. } => member.broke(now, BROKE_BADLY),
            WorkerError::Lost { .. } | WorkerError::StageFailed { .. } => member.broke(now, BROKE),
            WorkerError::Busy { .. }
            | WorkerError::Refused { .. }
            | WorkerError::NoDisk { .. }
            | WorkerError::Start { .. } => {}
        }
        if self.gives_up_on(&self.members[&id], &error) {
            return Err(GiveUp(error.to_string()));
        }
        if !self.is_declined(id, &error) {
            self.put_off(id, &error).await;
        }
        Ok(())
    }

    /// The driver saw the line break.
    pub(super) async fn fault(&mut self, fault: Fault) {
        let Line::Up { stages, .. } = &self.line else { return };
        if fault.epoch != self.epoch {
            return;
        }
        let stages = stages.clone();
        let culprits = watch::find_culprits(&mut self.members, &stages, &fault).await;
        self.line_broke(fault.reason, culprits).await;
    }

    pub(super) async fn heart_stopped(&mut self, id: MemberId, error: WorkerError) {
        match &error {
            WorkerError::StageFailed { .. } => {}
            WorkerError::Busy { .. } => return self.wants_to_leave(id, error),
            _ => return self.member_gone(id, error.to_string()).await,
        }
        // Its neighbours' stages fail with it: who began is asked for.
        let reason = error.to_string();
        let (epoch, stage, stuck_after_us) = (self.epoch, None, None);
        self.fault(Fault { epoch, reason, stage, stuck_after_us }).await;
    }

    /// A member ended or fell silent, on the line or off it.
    pub(super) async fn member_gone(&mut self, id: MemberId, how: String) {
        let on_line = match &self.line {
            Line::Up { stages: who, .. } | Line::Building { who } => who.contains(&id),
            Line::Down { .. } => false,
        };
        let culprit = Culprit { member: id, how, is_gone: true };
        if on_line {
            return self.line_broke("a worker was lost".to_string(), vec![culprit]).await;
        }
        self.lose(culprit).await;
    }

    /// Takes the line down, and puts off the workers that broke it. `reason` is given to clients where no worker did.
    pub(super) async fn line_broke(&mut self, reason: String, culprits: Vec<Culprit>) {
        let now = Instant::now();
        let reason = match culprits.first().map(|c| (self.members.get(&c.member), &c.how)) {
            Some((Some(member), how)) => named_once(&member.name(), how),
            Some((None, how)) => how.clone(),
            None => reason,
        };
        let line = std::mem::replace(&mut self.line, Line::Down { again_at: now });
        self.building.abort_all();
        self.building = JoinSet::new();
        self.give_up_coming(&reason);
        let stood = match line {
            Line::Up { since, stages, .. } => {
                // The driver hears of it before a suspect is killed, which would look like another fault.
                // An error means that the driver has ended; `stop` follows.
                let _ = self.ends.events.send(LineEvent::Down { reason, planned: false }).await;
                self.off_the_line(&stages);
                now.saturating_duration_since(since) >= STANDS_AFTER
            }
            Line::Building { .. } | Line::Down { .. } => false,
        };
        while self.ends.faults.try_recv().is_ok() {}
        self.quick_failures = if stood { 0 } else { self.quick_failures.saturating_add(1) };
        if culprits.is_empty() {
            let doubled = BUILD_AGAIN.saturating_mul(1 << self.quick_failures.min(8));
            self.line = Line::Down { again_at: now + doubled.min(BUILD_AGAIN_AT_MOST) };
            self.doubt_the_newest(now);
        }
        for culprit in culprits {
            if let Some(member) = self.members.get_mut(&culprit.member) {
                member.broke(now, BROKE);
            }
            if culprit.is_gone {
                self.lose(culprit).await;
            }
        }
    }

    /// Called when lines fail repeatedly though all their workers look well: one of them must be lying. The newest is
    /// put off first; an innocent one is used again when its doubts have expired.
    pub(super) fn doubt_the_newest(&mut self, now: Instant) {
        if let Some(member) = in_doubt(&mut self.members, self.quick_failures, now) {
            tracing::warn!(
                worker = member.name(),
                "lines keep failing without a visible cause: the newest worker is left out for a while"
            );
            member.broke(now, BROKE_BADLY);
        }
    }

    /// Members of a line that is no more are looked at like all others.
    pub(super) fn off_the_line(&mut self, stages: &[MemberId]) {
        for id in stages {
            if let Some(conn) = self.members.get(id).and_then(Member::conn) {
                self.heartbeats.listen(*id, conn);
            }
        }
    }

    pub(super) async fn lose(&mut self, culprit: Culprit) {
        let Culprit { member: id, how, .. } = culprit;
        self.heartbeats.stop(id);
        if let Some(member) = self.members.get_mut(&id) {
            let why = roll::without_name(member, &how);
            tracing::warn!(worker = member.name(), why, "worker lost");
            member.lost(Instant::now(), how).await;
        }
    }
}

/// How a worker broke the line, with its name in front, unless it begins with that.
fn named_once(name: &str, how: &str) -> String {
    if how.starts_with(name) { how.to_owned() } else { format!("{name}: {how}") }
}

/// The newest that joined and is not in doubt yet, where so many lines in a row failed soon that one lies.
fn in_doubt(
    members: &mut BTreeMap<MemberId, Member>,
    quick_failures: u32,
    now: Instant,
) -> Option<&mut Member> {
    if quick_failures < SUSPICIOUS {
        return None;
    }
    members.values_mut().rev().find(|m| m.has_joined() && m.doubts(now) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::members::member::Origin;

    #[test]
    fn who_broke_a_line_is_named_once() {
        assert_eq!(
            named_once("worker 10.0.0.2:7070", "it went silent"),
            "worker 10.0.0.2:7070: it went silent"
        );
        let how = "worker 10.0.0.2:7070: it went silent";
        assert_eq!(named_once("worker 10.0.0.2:7070", how), how);
    }

    #[test]
    fn the_newest_of_those_that_joined_are_left_out_one_after_the_other() {
        let now = Instant::now();
        let (named, joined) = ("127.0.0.1:1".parse().unwrap(), "127.0.0.1:2".parse().unwrap());
        let newer = "127.0.0.1:3".parse().unwrap();
        let origins =
            [Origin::Joined(joined), Origin::Joined(newer), Origin::Remote(named)].into_iter();
        let mut members: BTreeMap<MemberId, Member> =
            origins.map(|origin| Member::new(origin, now)).enumerate().collect();
        assert!(in_doubt(&mut members, SUSPICIOUS - 1, now).is_none(), "it may be anything");
        let mut left_out = Vec::new();
        while let Some(member) = in_doubt(&mut members, SUSPICIOUS, now) {
            left_out.push(member.name());
            member.broke(now, BROKE_BADLY);
        }
        assert_eq!(left_out, ["worker 127.0.0.1:3", "worker 127.0.0.1:2"], "who is named stays");
    }
}

//! The loop that performs what [`reconcile`](super::reconcile) asks for.
//!
//! Owns the members and the line. Every failure is turned into an observation (a member lost, the
//! line broken), so that there is one way to start and to recover. Ends on `stop`, or when
//! nothing it may do would help.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_proto::address::Address;
use brigade_proto::control::HealthReply;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::conn::{Conn, WorkerError};
use super::member::{self, Connected, Member, Origin};
use super::place::{self, PlaceError, Placement};
use super::placed::Identity;
use super::reconcile::{self, LineSeen, MemberId, Step};
use super::{ClusterConfig, Fault, LineEvent, Patience, Source, lane, load, watch};
use crate::handle::Status;
use crate::metrics;
use crate::model::Model;

/// What the supervisor is connected to.
pub(super) struct Ends {
    pub config: Arc<ClusterConfig>,
    pub model: Arc<Model>,
    pub coordinator_id: String,
    pub events: mpsc::Sender<LineEvent>,
    pub faults: mpsc::Receiver<Fault>,
    pub joins: Option<mpsc::Receiver<Address>>,
}

/// Nothing the supervisor may do would bring a line up.
struct GiveUp(String);

/// State of the line.
#[derive(Debug)]
enum Line {
    Down,
    Placed(Placement),
    Loaded(Placement),
    Up,
    Broken(String),
}

/// The supervisor.
pub(super) struct Supervisor {
    ends: Ends,
    members: Vec<Member>,
    line: Line,
    epoch: u64,
    /// Whether there was ever a line: from then on refusals are waited out.
    was_up: bool,
    /// Heartbeats of the line's members; each ends with the loss of its member.
    hearts: JoinSet<(MemberId, WorkerError)>,
    /// Members that broke the line; given up when it is taken down.
    suspects: Vec<MemberId>,
}

impl Supervisor {
    pub(super) fn new(ends: Ends) -> Self {
        let members = match &ends.config.source {
            Source::Local(options) => {
                (0..options.count).map(Origin::Local).map(Member::new).collect()
            }
            Source::Remote(addresses) => {
                addresses.iter().cloned().map(Origin::Remote).map(Member::new).collect()
            }
            Source::JoinOnly => Vec::new(),
        };
        let (line, hearts, suspects) = (Line::Down, JoinSet::new(), Vec::new());
        Self { ends, members, line, epoch: 0, was_up: false, hearts, suspects }
    }

    /// Works until `stop` or until it gives up; then all children have ended.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let step = self.next_step();
            let result = tokio::select! {
                () = stop.cancelled() => break,
                result = self.perform(step) => result,
            };
            if let Err(GiveUp(reason)) = result {
                // The driver may be gone already; then nobody needs to know.
                let _ = self.ends.events.send(LineEvent::Failed { reason }).await;
                break;
            }
        }
        self.leave().await;
    }

    fn next_step(&self) -> Step {
        let now = Instant::now();
        let seen: Vec<_> = self.members.iter().map(|m| m.seen(now)).collect();
        let line = match &self.line {
            Line::Down => LineSeen::Down,
            Line::Placed(_) => LineSeen::Placed,
            Line::Loaded(_) => LineSeen::Loaded,
            Line::Up => LineSeen::Up,
            Line::Broken(reason) => LineSeen::Broken { reason: reason.clone() },
        };
        reconcile::next(self.ends.config.at_least, &seen, &line)
    }

    async fn perform(&mut self, step: Step) -> Result<(), GiveUp> {
        match step {
            Step::TakeDown { reason } => self.take_down(reason).await,
            Step::Connect(ids) => self.connect(ids).await?,
            Step::Wait(time) => self.wait(time).await,
            Step::Place => self.place().await?,
            Step::Load => self.load().await?,
            Step::Open => self.open().await?,
            Step::Watch => self.watch().await,
        }
        Ok(())
    }

    /// Whether a failure that will not pass by itself ends everything.
    fn gives_up_on(&self, member: MemberId, error: &WorkerError) -> bool {
        if matches!(error, WorkerError::Busy { .. }) {
            let tries = self.members[member].failures();
            return self.ends.config.patience == Patience::FailFast && tries > BUSY_TRIES;
        }
        let patient = self.ends.config.patience == Patience::Forever;
        let hopeless = !error.is_transient() || !patient;
        hopeless && !(patient && self.was_up)
    }

    async fn connect(&mut self, ids: Vec<MemberId>) -> Result<(), GiveUp> {
        self.progress(format!("connecting {} workers", ids.len()), 0, 0);
        let config = &self.ends.config;
        let mut attempts = JoinSet::new();
        for id in ids {
            let origin = self.members[id].origin.clone();
            let local = match &config.source {
                Source::Local(options) => Some(options.clone()),
                _ => None,
            };
            let (me, insecure) = (self.ends.coordinator_id.clone(), config.insecure_network);
            attempts.spawn(async move { (id, member::connect(origin, local, me, insecure).await) });
        }
        while let Some(attempt) = attempts.join_next().await {
            let Ok((id, result)) = attempt else { continue };
            let result: Result<Connected, WorkerError> = result;
            match result {
                Ok(connected) => self.members[id].connected(connected),
                Err(error) => {
                    self.members[id].lost().await;
                    if self.gives_up_on(id, &error) {
                        return Err(GiveUp(error.to_string()));
                    }
                    tracing::warn!(%error, "cannot connect; trying again");
                }
            }
        }
        Ok(())
    }

    /// Waits for a join or for time to pass.
    async fn wait(&mut self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            address = next_join(&mut self.ends.joins) => self.joined(address),
        }
    }

    fn joined(&mut self, address: Address) {
        let known = self.members.iter_mut().find(|m| match &m.origin {
            Origin::Joined(a) | Origin::Remote(a) => *a == address,
            Origin::Local(_) => m.conn().is_some_and(|c| *c.address() == address),
        });
        match known {
            Some(member) => member.try_now(),
            None => {
                tracing::info!(worker = %address, "worker joined");
                if matches!(self.line, Line::Up) {
                    tracing::info!(worker = %address, "it takes layers when the line is next built");
                }
                self.members.push(Member::new(Origin::Joined(address)));
            }
        }
    }

    fn conns(&self) -> Vec<(MemberId, Conn)> {
        let connected = |(id, m): (usize, &Member)| m.conn().map(|c| (id, c.clone()));
        self.members.iter().enumerate().filter_map(connected).collect()
    }

    async fn place(&mut self) -> Result<(), GiveUp> {
        self.progress("placing layers".to_string(), 0, 0);
        let conns = self.conns();
        // An epoch is this coordinator's own: what a worker claims to have seen of it cannot be above it.
        for (_, conn) in conns.iter().filter(|(_, conn)| conn.last_epoch() > self.epoch) {
            let (worker, claimed, begun) = (conn.name(), conn.last_epoch(), self.epoch);
            tracing::warn!(
                worker,
                claimed,
                begun,
                "it claims an epoch that was never begun: ignored"
            );
        }
        self.epoch += 1;
        let placed = place::place(
            &self.ends.model,
            conns,
            &self.ends.config.stage,
            Identity { epoch: self.epoch, coordinator_id: self.ends.coordinator_id.clone() },
            &self.ends.events,
        );
        match placed.await {
            Ok(placement) => self.line = Line::Placed(placement),
            Err(PlaceError::Worker { member, error }) => self.worker_failed(member, error).await?,
            Err(error) if self.was_up => {
                self.line = Line::Broken(error.to_string());
                tokio::time::sleep(PLACE_AGAIN).await;
            }
            Err(error) => return Err(GiveUp(error.to_string())),
        }
        Ok(())
    }

    async fn load(&mut self) -> Result<(), GiveUp> {
        let Line::Placed(placement) = std::mem::replace(&mut self.line, Line::Down) else {
            return Ok(());
        };
        match load::load(&placement, &self.ends.model, &self.ends.events).await {
            Ok(()) => self.line = Line::Loaded(placement),
            Err((member, error)) => self.worker_failed(member, error).await?,
        }
        Ok(())
    }

    async fn open(&mut self) -> Result<(), GiveUp> {
        let Line::Loaded(placement) = std::mem::replace(&mut self.line, Line::Down) else {
            return Ok(());
        };
        let ends = placement.ends();
        let opened = lane::open(
            &ends,
            self.epoch,
            &self.ends.coordinator_id,
            placement.line,
            Arc::new(placement.info()),
            placement.doors(),
        );
        match opened.await {
            Ok(line) => {
                self.listen_to_hearts(&placement);
                self.was_up = true;
                metrics::line_up();
                tracing::info!(epoch = self.epoch, stages = placement.line.n_stages, "line is up");
                // An error means that the driver has ended; `stop` follows.
                let _ = self.ends.events.send(LineEvent::Up(Box::new(line))).await;
                self.line = Line::Up;
            }
            Err(error) if self.ends.config.patience == Patience::FailFast => {
                return Err(GiveUp(error.to_string()));
            }
            Err(error) => self.line = Line::Broken(error.to_string()),
        }
        Ok(())
    }

    fn listen_to_hearts(&mut self, placement: &Placement) {
        self.hearts.abort_all();
        self.hearts = JoinSet::new();
        for (stage, placed) in placement.stages.iter().enumerate() {
            let (id, conn, epoch) = (placed.member, placed.conn.clone(), self.epoch);
            self.hearts.spawn(async move {
                let mut before: Option<HealthReply> = None;
                let lost = conn.silence(epoch, |now| {
                    let share = busy_share(before.as_ref(), now);
                    metrics::heartbeat(stage, now, share);
                    before = Some(now.clone());
                });
                (id, lost.await)
            });
        }
    }

    /// Waits until the line breaks, and finds out who broke it.
    async fn watch(&mut self) {
        tokio::select! {
            Some(fault) = self.ends.faults.recv() => {
                if fault.epoch == self.epoch {
                    let culprit = watch::find_culprit(&mut self.members).await;
                    self.line = Line::Broken(match culprit {
                        Some((who, reason)) => {
                            self.suspects.extend(who);
                            reason
                        }
                        None => fault.reason,
                    });
                }
            }
            Some(Ok((member, error))) = self.hearts.join_next() => {
                self.suspects.push(member);
                self.line = Line::Broken(error.to_string());
            }
            (member, how) = watch::child_ended(&mut self.members) => {
                self.suspects.push(member);
                self.line = Line::Broken(watch::blame(&self.members[member], &how));
            }
            address = next_join(&mut self.ends.joins) => self.joined(address),
        }
    }

    /// A call to one worker failed while the line was built.
    async fn worker_failed(&mut self, member: MemberId, error: WorkerError) -> Result<(), GiveUp> {
        self.members[member].lost().await;
        if self.gives_up_on(member, &error) {
            return Err(GiveUp(error.to_string()));
        }
        tracing::warn!(%error, "a worker failed while the line was built");
        self.line = Line::Broken(error.to_string());
        Ok(())
    }

    async fn take_down(&mut self, reason: String) {
        // The driver hears of it before a suspect is killed, which would look like another fault.
        // An error means that the driver has ended; `stop` follows.
        let _ = self.ends.events.send(LineEvent::Down { reason }).await;
        self.hearts.abort_all();
        self.line = Line::Down;
        while self.ends.faults.try_recv().is_ok() {}
        let mut lost = std::mem::take(&mut self.suspects);
        if lost.is_empty() {
            lost.extend(watch::silent(&self.members).await.into_iter().map(|(member, _)| member));
        }
        lost.sort_unstable();
        lost.dedup();
        for member in lost {
            tracing::warn!(worker = self.members[member].conn().map(Conn::name), "worker lost");
            self.members[member].lost().await;
        }
    }

    fn progress(&self, what: String, done_bytes: u64, total_bytes: u64) {
        let status = Status::Loading { what, done_bytes, total_bytes };
        // A full queue means that newer progress is on its way already.
        let _ = self.ends.events.try_send(LineEvent::Progress(status));
    }

    async fn leave(mut self) {
        self.hearts.abort_all();
        let mut ending = JoinSet::new();
        let epoch = self.epoch;
        for member in self.members {
            ending.spawn(async move {
                match (&member.origin, member.conn().cloned()) {
                    (Origin::Remote(_) | Origin::Joined(_), Some(conn)) => conn.unload(epoch).await,
                    _ => member.stop().await,
                }
            });
        }
        while ending.join_next().await.is_some() {}
    }
}

/// Times that even an impatient command asks a busy worker: with the pauses between them longer than
/// the lease of a coordinator that has died.
const BUSY_TRIES: u32 = 5;

/// Pause before layers are placed again after a failure that no worker is to blame for.
const PLACE_AGAIN: Duration = Duration::from_secs(2);

async fn next_join(joins: &mut Option<mpsc::Receiver<Address>>) -> Address {
    match joins {
        Some(joins) => match joins.recv().await {
            Some(address) => address,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

/// Share of the time between two heartbeats that a stage computed.
fn busy_share(before: Option<&HealthReply>, now: &HealthReply) -> f64 {
    let before = before.filter(|b| b.epoch == now.epoch);
    let wall = now.lane_us.saturating_sub(before.map_or(0, |b| b.lane_us));
    let busy = now.busy_us.saturating_sub(before.map_or(0, |b| b.busy_us));
    if wall == 0 { 0.0 } else { busy as f64 / wall as f64 }
}

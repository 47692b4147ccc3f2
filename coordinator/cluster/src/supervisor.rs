//! The loop that performs what [`reconcile`](super::reconcile) asks for.
//!
//! It owns the members and the line. Attempts to connect, the building of a line and heartbeats run as tasks beside
//! it. It hears of them as news, updates its state, and asks again. So starting and recovering take the same way, and
//! a worker that hangs holds nothing up. The loop ends on `stop`, or when nothing that it may do would help.

mod borrow;
mod change;
mod layers;
mod leavers;
mod line;
mod members;
mod next_line;
mod slow;
mod status;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_plan::Checkpoint;
use brigade_proto::address::Address;
use brigade_proto::capability::Requirements;
use tokio::sync::{mpsc, watch as watch_channel};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::watch;
use crate::building::ahead::{Ahead, Ordered};
use crate::building::build::{BuildError, Built};
use crate::building::demands;
use crate::building::fits::Fits;
use crate::config::{ClusterConfig, Patience};
use crate::members::conn::{Conn, WorkerError};
use crate::members::departed::Departed;
use crate::members::dial::Connected;
use crate::members::heartbeats::Heartbeats;
use crate::members::member::{Member, Origin};
use crate::members::own_name::OwnName;
use crate::members::placed_stage::Pace;
use crate::members::roll;
use crate::pool::Seat;
use crate::reconcile::{self, Goal, Lacking, LineSeen, MemberId, Step};
use brigade_line::admin::Asked;
use brigade_line::handle::Status;
use brigade_line::health::{Loading, Roll};
use brigade_line::measured::metrics;
use brigade_line::model::Model;
use brigade_line::stages::link::{Fault, LineEvent};
use brigade_line::stages::open_line::Moved;
use brigade_line::stages::stale::StaleTimes;
use brigade_proto::task::joined;

use change::{Change, Rebalancing};
use leavers::Leaver;
use next_line::NextLine;
use slow::Window;

/// The supervisor's settings and channels.
pub(super) struct Ends {
    pub config: Arc<ClusterConfig>,
    /// The line's place at the pool that lends it workers, if there is one.
    pub seat: Option<Arc<Seat>>,
    pub model: Arc<Model>,
    pub coordinator_id: String,
    pub own_name: OwnName,
    pub events: mpsc::Sender<LineEvent>,
    pub faults: mpsc::Receiver<Fault>,
    pub joins: Option<mpsc::Receiver<Address>>,
    pub asked: mpsc::Receiver<Asked>,
    pub roll: watch_channel::Sender<Roll>,
}

/// Nothing the supervisor may do would bring a line up.
struct GiveUp(String);

/// State of the line.
#[derive(Debug)]
enum Line {
    Down {
        again_at: Instant,
    },
    Building {
        who: Vec<MemberId>,
    },
    /// The line is up over these members, first stage first.
    Up {
        stages: Vec<MemberId>,
        /// Layers of each stage.
        layers: Vec<Range<usize>>,
        /// Planned time of a unit of work on each stage.
        paces: Vec<Pace>,
        /// Computing times to leave out when a slow stage is looked for.
        stale: StaleTimes,
        /// Positions of its longest sequence.
        n_ctx: u32,
        since: Instant,
    },
}

/// An event for the supervisor.
enum News {
    Joined(Address),
    Asked(Asked),
    Connected(MemberId, Box<Result<Connected, WorkerError>>),
    /// A member does not answer heartbeats.
    Silent(MemberId, WorkerError),
    ChildEnded(MemberId, String),
    Built(Box<Result<Built, BuildError>>),
    /// The next line has loaded.
    Ahead(Box<Result<Ahead, String>>),
    /// The sequences of lines before this one have their states; `None`: the line is gone.
    Settled(Option<Moved>),
    Fault(Fault),
    Time,
}

/// The supervisor's state.
pub(super) struct Supervisor {
    ends: Ends,
    needs: Requirements,
    members: BTreeMap<MemberId, Member>,
    next_id: MemberId,
    /// All workers that are connected, for lines that are up.
    present: watch_channel::Sender<Arc<[Conn]>>,
    departed: Departed,
    line: Line,
    epoch: u64,
    goal: Goal,
    /// Consecutive lines that failed soon, without a worker to blame.
    quick_failures: u32,
    fits: Fits,
    attempts: JoinSet<(MemberId, Result<Connected, WorkerError>)>,
    /// The task that builds the next line; one at most.
    building: JoinSet<Result<Built, BuildError>>,
    heartbeats: Heartbeats,
    /// A planned change for which the next line loads.
    next_line: Option<NextLine>,
    /// The task that loads ahead; one at most.
    loading_ahead: JoinSet<Result<Ahead, String>>,
    /// Tasks that tell workers to let go of what they loaded for a line that does not come.
    forgetting: JoinSet<()>,
    /// A planned change whose line is taken down.
    change: Option<Change>,
    /// The task that waits until the line that is up is settled; one at most.
    settling: JoinSet<Option<Moved>>,
    rebalancing: Rebalancing,
    /// The cut of the next line, if it is fixed.
    ordered: Option<Ordered>,
    /// Workers that leave the line when the others suffice.
    leavers: Vec<Leaver>,
    /// How fast the stages compute is measured in it.
    window: Option<Window>,
    /// What kept workers from taking their stages since the line was up last, by worker.
    failed: BTreeMap<String, String>,
    /// The last message about the missing line.
    said: String,
    /// A command for the operator that goes with it.
    next_step: Option<String>,
}

impl Supervisor {
    pub(super) fn new(ends: Ends) -> Self {
        let now = Instant::now();
        let config = &ends.config;
        let origins = Origin::named(&config.source).into_iter();
        let members: BTreeMap<_, _> =
            origins.map(|origin| Member::new(origin, now)).enumerate().collect();
        let goal = Goal {
            expect: config.expect,
            // A cut by hand names its workers: no other worker replaces them.
            all_named: config.patience == Patience::FailFast || config.stage.cut.is_some(),
            joins: ends.joins.is_some(),
            was_up: false,
            last_line: 0,
            replace_after: config.replace_after,
            in_pairs: config.stage.checkpoint == Checkpoint::Buddy,
        };
        Self {
            needs: demands::requirements(&ends.model, &config.stage),
            next_id: members.len(),
            members,
            present: watch_channel::channel(Arc::default()).0,
            departed: Departed::default(),
            line: Line::Down { again_at: now },
            epoch: ends.own_name.epoch(),
            goal,
            quick_failures: 0,
            fits: Fits::new(ends.model.clone(), config.stage.clone()),
            attempts: JoinSet::new(),
            building: JoinSet::new(),
            heartbeats: Heartbeats::default(),
            next_line: None,
            loading_ahead: JoinSet::new(),
            forgetting: JoinSet::new(),
            change: None,
            settling: JoinSet::new(),
            rebalancing: Rebalancing::default(),
            ordered: None,
            leavers: Vec::new(),
            window: None,
            failed: BTreeMap::new(),
            said: String::new(),
            next_step: None,
            ends,
        }
    }

    /// Works until `stop` or until it gives up; then all children have ended.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let result = tokio::select! {
                () = stop.cancelled() => break,
                result = self.turn() => result,
            };
            if let Err(GiveUp(reason)) = result {
                // This is the reason, besides other symptoms.
                let reason = self.check_model().err().map_or(reason, |GiveUp(why)| why);
                // The driver may be gone already; then the message is not needed.
                let _ = self.ends.events.send(LineEvent::Failed { reason }).await;
                break;
            }
        }
        self.leave().await;
    }

    /// Takes one step, and waits for the next news.
    async fn turn(&mut self) -> Result<(), GiveUp> {
        self.let_leavers_go();
        self.deal_with_the_pool();
        self.call_the_roll();
        self.rebalance_if_it_pays();
        match self.next_step() {
            Step::Forget(ids) => ids.into_iter().for_each(|id| self.forget(id)),
            Step::Connect(ids) => ids.into_iter().for_each(|id| self.connect(id)),
            Step::Build(ids) => {
                self.check_model()?;
                self.build(ids);
            }
            Step::GiveUp(why) => return Err(GiveUp(self.why_nobody(why))),
            Step::Wait { within, lacking } => {
                if let Some(lacking) = lacking {
                    self.say(&lacking);
                }
                let news = self.news(within).await;
                self.heard(news).await?;
            }
        }
        Ok(())
    }

    /// Checks that the model's files have not changed: no line can be built of changed ones.
    fn check_model(&self) -> Result<(), GiveUp> {
        self.ends.model.check_unchanged().map_err(|error| {
            GiveUp(format!("{error}; start brigade anew, and it reads the file as it is now"))
        })
    }

    fn next_step(&mut self) -> Step {
        let now = Instant::now();
        // A drained worker that is still connected does not count for a line.
        let may = |m: &(&MemberId, &Member)| m.1.conn().is_none() || !m.1.is_drained();
        let seen = self.members.iter().filter(may).map(|(id, m)| m.seen(*id, now));
        let seen: Vec<_> = seen.collect();
        let line = match &self.line {
            Line::Down { again_at } => {
                LineSeen::Down { retry_in: again_at.saturating_duration_since(now) }
            }
            Line::Building { .. } => LineSeen::Building,
            Line::Up { .. } => LineSeen::Up,
        };
        let (fits, members) = (&mut self.fits, &self.members);
        reconcile::next(&self.goal, &seen, line, &mut |ids| fits.ask(members, ids))
    }

    /// Waits for the next thing to happen.
    async fn news(&mut self, within: Duration) -> News {
        tokio::select! {
            () = tokio::time::sleep(within) => News::Time,
            address = next_join(&mut self.ends.joins) => News::Joined(address),
            Some(asked) = self.ends.asked.recv() => News::Asked(asked),
            Some(attempt) = self.attempts.join_next() => {
                let (id, result) = joined(attempt).await;
                News::Connected(id, Box::new(result))
            }
            (id, error) = self.heartbeats.next_silent() => News::Silent(id, error),
            Some(built) = self.building.join_next() => News::Built(Box::new(joined(built).await)),
            Some(ahead) = self.loading_ahead.join_next() => News::Ahead(Box::new(joined(ahead).await)),
            Some(settled) = self.settling.join_next() => News::Settled(joined(settled).await),
            Some(fault) = self.ends.faults.recv() => News::Fault(fault),
            (id, how) = watch::child_ended(&mut self.members) => News::ChildEnded(id, how),
        }
    }

    async fn heard(&mut self, news: News) -> Result<(), GiveUp> {
        match news {
            News::Time => {}
            News::Joined(address) => self.joined(address),
            News::Asked(asked) => self.asked(asked).await,
            News::Connected(id, attempt) => match *attempt {
                Ok(connected) => self.connected(id, connected),
                Err(error) => self.not_connected(id, error).await?,
            },
            News::Silent(id, error) => self.heart_stopped(id, error).await,
            News::ChildEnded(id, how) => self.member_gone(id, how).await,
            News::Built(result) => match *result {
                Ok(built) => self.built(built).await,
                Err(error) => self.not_built(error).await?,
            },
            News::Ahead(loaded) => self.loaded_ahead(*loaded).await,
            News::Settled(moved) => self.settled(moved),
            News::Fault(fault) => self.fault(fault).await,
        }
        Ok(())
    }

    // Words.

    /// Publishes the list of workers.
    fn call_the_roll(&self) {
        let stages = match &self.line {
            Line::Down { .. } => None,
            Line::Building { who: stages } | Line::Up { stages, .. } => Some(stages.as_slice()),
        };
        let there = self.members.values().filter(|m| m.conn().is_some()).count();
        let named = self.members.values().filter(|m| !m.has_joined()).count();
        let expected = if self.goal.was_up { 1 } else { self.goal.expect.max(named).max(1) };
        let called = Roll {
            expected,
            memory_needed_bytes: self.fits.bytes_over(there.max(expected)),
            ..roll::roll(&self.members, stages)
        };
        let is_new = self.ends.roll.send_if_modified(|roll| {
            let is_new = *roll != called;
            if is_new {
                metrics::workers(called.line.len(), called.spare.len(), called.missing.len());
                *roll = called;
            }
            is_new
        });
        if is_new {
            self.present.send_replace(self.all_conns().into());
        }
    }

    /// Reports what is lacking and which workers are there: to `/health`, and to the log when it is news.
    fn say(&mut self, lacking: &Lacking) {
        let headline = roll::headline(lacking, &self.ends.roll.borrow(), self.goal.joins);
        let said = match self.ends.seat.as_ref().map(|seat| seat.why()) {
            Some(why) if !why.is_empty() => format!("{headline}; {why}"),
            _ => format!("{headline}; {}", roll::call(&self.members)),
        };
        self.progress(said.clone());
        let next_step = self.step_towards(lacking);
        if said != self.said || next_step != self.next_step {
            match &next_step {
                Some(command) => tracing::info!("no line yet: {said}; to add a machine: {command}"),
                None => tracing::info!("no line yet: {said}"),
            }
            (self.said, self.next_step) = (said, next_step);
        }
    }

    fn progress(&self, what: String) {
        let status = Status::Loading(Loading::step(what));
        // A full queue means that newer progress is on its way already.
        let _ = self.ends.events.try_send(LineEvent::Progress(status));
    }

    /// Why there will be no line: what workers said is more to the point than how many are left.
    fn why_nobody(&self, why: String) -> String {
        let refusals = self.members.values().filter(|m| m.refuses()).filter_map(Member::why);
        let refusals: Vec<&str> = refusals.collect();
        if refusals.is_empty() { why } else { refusals.join("; ") }
    }

    async fn leave(mut self) {
        self.heartbeats.stop_all();
        self.building.abort_all();
        self.settling.abort_all();
        self.loading_ahead.abort_all();
        self.attempts.shutdown().await;
        let mut ending = JoinSet::new();
        let epoch = self.epoch;
        for member in self.members.into_values() {
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

async fn next_join(joins: &mut Option<mpsc::Receiver<Address>>) -> Address {
    match joins {
        Some(joins) => match joins.recv().await {
            Some(address) => address,
            None => std::future::pending().await,
        },
        None => std::future::pending().await,
    }
}

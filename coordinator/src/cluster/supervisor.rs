//! The loop that performs what [`reconcile`](super::reconcile) asks for.
//!
//! Owns the members and the line. Attempts to connect, the building of a line and heartbeats run beside it;
//! it hears of them as news, changes what is known, and asks again. So there is one way to start and to
//! recover, and nobody who hangs is waited for. Ends on `stop`, or when nothing it may do would help.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_proto::address::Address;
use brigade_proto::capability::Requirements;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::build::{self, BuildError, Built};
use super::config::{ClusterConfig, Patience, Source};
use super::conn::{Conn, WorkerError};
use super::departed::{self, Departed};
use super::dial::{self, Connected, Dial};
use super::enough::Enough;
use super::hearts::Hearts;
use super::link::{Fault, LineEvent};
use super::member::{BROKE, BROKE_BADLY, Member, Origin};
use super::placed::Identity;
use super::reconcile::{self, Goal, LineSeen, MemberId, Step};
use super::watch::{self, Culprit};
use super::{place, roll};
use crate::handle::Status;
use crate::metrics;
use crate::model::Model;

/// Times that even an impatient command asks a busy worker: with the pauses between them longer than
/// the lease of a coordinator that has died.
const BUSY_TRIES: u32 = 5;

/// Pause before a line is built again after a failure that no worker is to blame for; it doubles while
/// lines stay up for less than [`STANDS_AFTER`] ...
const BUILD_AGAIN: Duration = Duration::from_millis(250);

/// ... up to this.
const BUILD_AGAIN_AT_MOST: Duration = Duration::from_secs(2);

/// A line that was up this long stands: the next failure is the first again.
const STANDS_AFTER: Duration = Duration::from_secs(10);

/// Workers that joined and have not shaken hands, at once: joining proves nothing.
const MAX_UNPROVEN: usize = 64;

/// Members at once; as many as a plan can have.
const MAX_MEMBERS: usize = crate::plan::MAX_WORKERS;

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
    Down {
        again_at: Instant,
    },
    Building {
        who: Vec<MemberId>,
    },
    /// Who is in it, first stage first.
    Up {
        stages: Vec<MemberId>,
        since: Instant,
    },
}

/// What happens outside.
enum News {
    Joined(Address),
    Connected(MemberId, Box<Result<Connected, WorkerError>>),
    /// A heart stopped: of this member's connection with this number.
    Silent(MemberId, u64, WorkerError),
    ChildEnded(MemberId, String),
    Built(Box<Result<Built, BuildError>>),
    Fault(Fault),
    Time,
}

/// The supervisor.
pub(super) struct Supervisor {
    ends: Ends,
    needs: Requirements,
    members: BTreeMap<MemberId, Member>,
    next_id: MemberId,
    departed: Departed,
    line: Line,
    epoch: u64,
    goal: Goal,
    /// Lines in a row that failed soon, with nobody to blame.
    quick_failures: u32,
    enough: Enough,
    attempts: JoinSet<(MemberId, Result<Connected, WorkerError>)>,
    /// At most one.
    building: JoinSet<Result<Built, BuildError>>,
    hearts: Hearts,
    /// What was said last while there was no line.
    said: String,
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
            all_named: config.patience == Patience::FailFast,
            joins: ends.joins.is_some(),
            ..Goal::default()
        };
        Self {
            needs: place::requirements(&ends.model, &config.stage),
            next_id: members.len(),
            members,
            departed: Departed::default(),
            line: Line::Down { again_at: now },
            epoch: 0,
            goal,
            quick_failures: 0,
            enough: Enough::new(ends.model.clone(), config.stage.clone()),
            attempts: JoinSet::new(),
            building: JoinSet::new(),
            hearts: Hearts::default(),
            said: String::new(),
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
                // The driver may be gone already; then nobody needs to know.
                let _ = self.ends.events.send(LineEvent::Failed { reason }).await;
                break;
            }
        }
        self.leave().await;
    }

    /// One step, and the news it waits for.
    async fn turn(&mut self) -> Result<(), GiveUp> {
        match self.next_step() {
            Step::Forget(ids) => ids.into_iter().for_each(|id| self.forget(id)),
            Step::Connect(ids) => ids.into_iter().for_each(|id| self.connect(id)),
            Step::Build(ids) => self.build(ids),
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

    fn next_step(&mut self) -> Step {
        let now = Instant::now();
        let seen: Vec<_> = self.members.iter().map(|(id, m)| m.seen(*id, now)).collect();
        let line = match &self.line {
            Line::Down { again_at } => {
                LineSeen::Down { retry_in: again_at.saturating_duration_since(now) }
            }
            Line::Building { .. } => LineSeen::Building,
            Line::Up { .. } => LineSeen::Up,
        };
        let (enough, members) = (&mut self.enough, &self.members);
        reconcile::next(&self.goal, &seen, line, &mut |ids| enough.ask(members, ids))
    }

    /// Waits for the next thing to happen.
    async fn news(&mut self, within: Duration) -> News {
        tokio::select! {
            () = tokio::time::sleep(within) => News::Time,
            address = next_join(&mut self.ends.joins) => News::Joined(address),
            Some(attempt) = self.attempts.join_next() => {
                let (id, result) = finished(attempt);
                News::Connected(id, Box::new(result))
            }
            (id, serial, error) = self.hearts.next_silent() => News::Silent(id, serial, error),
            Some(built) = self.building.join_next() => News::Built(Box::new(finished(built))),
            Some(fault) = self.ends.faults.recv() => News::Fault(fault),
            (id, how) = watch::child_ended(&mut self.members) => News::ChildEnded(id, how),
        }
    }

    async fn heard(&mut self, news: News) -> Result<(), GiveUp> {
        match news {
            News::Time => {}
            News::Joined(address) => self.joined(address),
            News::Connected(id, attempt) => match *attempt {
                Ok(connected) => self.connected(id, connected),
                Err(error) => self.not_connected(id, error).await?,
            },
            News::Silent(id, serial, error) => {
                if self.members.get(&id).is_some_and(|m| m.serial() == serial) {
                    self.heart_stopped(id, error).await;
                }
            }
            News::ChildEnded(id, how) => self.member_gone(id, how).await,
            News::Built(result) => match *result {
                Ok(built) => self.built(built).await,
                Err(error) => self.not_built(error).await?,
            },
            News::Fault(fault) => self.fault(fault).await,
        }
        Ok(())
    }

    // Members: joining, connecting, leaving.

    fn joined(&mut self, address: Address) {
        let now = Instant::now();
        let is_it = |m: &Member| match &m.origin {
            Origin::Joined(a) | Origin::Remote(a) => *a == address,
            Origin::Local(_) => m.conn().is_some_and(|c| *c.address() == address),
        };
        if let Some(member) = self.members.values_mut().find(|m| is_it(m)) {
            return member.try_now(now);
        }
        let unproven = self.members.values().filter(|m| m.has_joined() && !m.is_proven()).count();
        if self.departed.was_refused(&address, now) {
            return;
        }
        if unproven >= MAX_UNPROVEN || self.members.len() >= MAX_MEMBERS {
            // It joins again by itself.
            let (members, why) = (self.members.len(), "too many workers are joining");
            tracing::debug!(worker = %address, unproven, members, "{why}");
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.members.insert(id, Member::new(Origin::Joined(address), now));
        self.connect(id);
    }

    /// Dials or starts a member, in the background.
    fn connect(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.connecting(Instant::now());
        let config = &self.ends.config;
        let dial = Dial {
            origin: member.origin.clone(),
            local: match &config.source {
                Source::Local(options) => Some(options.clone()),
                Source::Remote(_) | Source::JoinOnly => None,
            },
            coordinator_id: self.ends.coordinator_id.clone(),
            insecure_network: config.insecure_network,
            needs: Some(self.needs.clone()),
        };
        self.attempts.spawn(async move { (id, dial::connect(dial).await) });
    }

    fn connected(&mut self, id: MemberId, connected: Connected) {
        let now = Instant::now();
        let Connected { child, conn } = connected;
        let Some(member) = self.members.get_mut(&id) else { return };
        let is_new = !member.is_proven();
        member.connected(now, child, conn.clone());
        self.hearts.listen(id, member.serial(), &conn);
        if let Origin::Joined(address) = member.origin.clone()
            && is_new
        {
            tracing::info!(worker = %address, "worker joined");
            if matches!(self.line, Line::Up { .. }) {
                tracing::info!(worker = %address, "it takes layers when the line is next built");
            }
            self.takes_a_place(id, &address, now);
        }
    }

    /// A newcomer on a host where workers broke lines and left is in their place.
    fn takes_a_place(&mut self, id: MemberId, address: &Address, now: Instant) {
        let left = |m: &Member| match &m.origin {
            Origin::Joined(other) => m.conn().is_none() && departed::same_host(other, address),
            Origin::Local(_) | Origin::Remote(_) => false,
        };
        let before: Vec<MemberId> =
            self.members.iter().filter(|(_, m)| left(m)).map(|(id, _)| *id).collect();
        // One that came back has left its place to nobody; the newest loss is the likeliest.
        if let Some(&gone) = before.iter().rfind(|gone| self.members[*gone].is_proven()) {
            self.forget(gone);
        }
        if self.departed.doubts(address, now)
            && let Some(member) = self.members.get_mut(&id)
        {
            tracing::warn!(worker = %address, "a worker of this host broke the line lately: used only if others do not suffice");
            member.broke(now, BROKE_BADLY);
        }
    }

    async fn not_connected(&mut self, id: MemberId, error: WorkerError) -> Result<(), GiveUp> {
        let Some(member) = self.members.get(&id) else { return Ok(()) };
        if self.gives_up_on(member, &error) {
            return Err(GiveUp(error.to_string()));
        }
        if member.has_joined() && !member.is_proven() {
            self.refuse_newcomer(id, &error);
            return Ok(());
        }
        if member.why() != Some(error.to_string().as_str()) {
            tracing::warn!(%error, "cannot connect; trying again");
        }
        self.put_off(id, &error).await;
        Ok(())
    }

    /// It joined and did not stand the handshake: it is forgotten, whoever it was.
    fn refuse_newcomer(&mut self, id: MemberId, error: &WorkerError) {
        let Some(member) = self.members.remove(&id) else { return };
        if let Origin::Joined(address) = &member.origin
            && self.departed.refused(address, &error.to_string(), Instant::now())
        {
            tracing::warn!(worker = %address, %error, "a worker that joined is refused");
        }
    }

    /// A member is absent until its next attempt is due, by what kept it from working.
    async fn put_off(&mut self, id: MemberId, error: &WorkerError) {
        self.hearts.stop(id);
        let Some(member) = self.members.get_mut(&id) else { return };
        let (now, why) = (Instant::now(), error.to_string());
        match error {
            WorkerError::Busy { .. } => member.is_busy(now, why).await,
            WorkerError::Refused { .. } => member.refused(now, why).await,
            _ => member.lost(now, why).await,
        }
    }

    /// Whether a failure that will not pass by itself ends everything. Who joined ends nothing.
    fn gives_up_on(&self, member: &Member, error: &WorkerError) -> bool {
        if member.has_joined() {
            return false;
        }
        match (self.ends.config.patience, error) {
            (Patience::FailFast, WorkerError::Busy { .. }) => member.failures() > BUSY_TRIES,
            (Patience::FailFast, _) => true,
            (Patience::Forever, WorkerError::Start { .. }) => !self.goal.was_up,
            (Patience::Forever, _) => false,
        }
    }

    fn forget(&mut self, id: MemberId) {
        self.hearts.stop(id);
        let Some(member) = self.members.remove(&id) else { return };
        let now = Instant::now();
        if let Origin::Joined(address) = &member.origin {
            if member.has_broken(now) {
                self.departed.left_doubted(address, now);
            }
            let why = member.why().unwrap_or("");
            tracing::info!(worker = %address, why, "worker left");
        }
    }

    // The line: building, up, broken.

    fn build(&mut self, who: Vec<MemberId>) {
        let conn = |id: &MemberId| Some((*id, self.members.get(id)?.conn()?.clone()));
        let conns: Vec<(MemberId, Conn)> = who.iter().filter_map(conn).collect();
        let highest = conns.iter().map(|(_, c)| c.last_epoch()).max().unwrap_or(0);
        self.epoch = self.epoch.max(highest) + 1;
        let names = roll::names(&self.members, &who);
        tracing::info!(epoch = self.epoch, workers = names, "building a line");
        self.progress(format!("placing layers on {names}"));
        let order = build::Order {
            conns,
            model: self.ends.model.clone(),
            options: self.ends.config.stage.clone(),
            identity: Identity {
                epoch: self.epoch,
                coordinator_id: self.ends.coordinator_id.clone(),
            },
            events: self.ends.events.clone(),
        };
        self.said.clear();
        self.line = Line::Building { who };
        self.building.spawn(build::build(order));
    }

    async fn built(&mut self, built: Built) {
        let Built { line, stages } = built;
        for (stage, placed) in stages.iter().enumerate() {
            if let Some(member) = self.members.get_mut(&placed.member) {
                member.serves();
                let serial = member.serial();
                self.hearts.listen_on_line(placed.member, serial, &placed.conn, self.epoch, stage);
            }
        }
        let stages: Vec<MemberId> = stages.into_iter().map(|placed| placed.member).collect();
        self.goal.was_up = true;
        self.goal.last_line = stages.len();
        metrics::line_up(stages.len());
        let workers = roll::names(&self.members, &stages);
        tracing::info!(epoch = self.epoch, stages = stages.len(), workers, "line is up");
        self.line = Line::Up { stages, since: Instant::now() };
        // An error means that the driver has ended; `stop` follows.
        let _ = self.ends.events.send(LineEvent::Up(Box::new(line))).await;
    }

    async fn not_built(&mut self, error: BuildError) -> Result<(), GiveUp> {
        let Line::Building { who } = &self.line else { return Ok(()) };
        let who = who.clone();
        let impatient = self.ends.config.patience == Patience::FailFast;
        match error {
            BuildError::Workers(failed) => {
                self.line = Line::Down { again_at: Instant::now() };
                for (id, error) in failed {
                    self.cannot_build(id, error).await?;
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
    async fn cannot_build(&mut self, id: MemberId, error: WorkerError) -> Result<(), GiveUp> {
        let Some(member) = self.members.get_mut(&id) else { return Ok(()) };
        tracing::warn!(%error, "a worker failed while the line was built");
        let now = Instant::now();
        match &error {
            WorkerError::Stalled { .. } => member.broke(now, BROKE_BADLY),
            WorkerError::Lost { .. } | WorkerError::StageFailed { .. } => member.broke(now, BROKE),
            WorkerError::Busy { .. } | WorkerError::Refused { .. } | WorkerError::Start { .. } => {}
        }
        if self.gives_up_on(&self.members[&id], &error) {
            return Err(GiveUp(error.to_string()));
        }
        self.put_off(id, &error).await;
        Ok(())
    }

    /// The driver saw the line break.
    async fn fault(&mut self, fault: Fault) {
        let Line::Up { stages, .. } = &self.line else { return };
        if fault.epoch != self.epoch {
            return;
        }
        let stages = stages.clone();
        let culprits = watch::find_culprits(&mut self.members, &stages, &fault).await;
        self.line_broke(fault.reason, culprits).await;
    }

    async fn heart_stopped(&mut self, id: MemberId, error: WorkerError) {
        let WorkerError::StageFailed { .. } = &error else {
            return self.member_gone(id, error.to_string()).await;
        };
        // Its neighbours' stages fail with it: who began is asked for.
        let reason = error.to_string();
        let (epoch, stage, stuck_after_us) = (self.epoch, None, None);
        self.fault(Fault { epoch, reason, stage, stuck_after_us }).await;
    }

    /// A member ended or fell silent, on the line or off it.
    async fn member_gone(&mut self, id: MemberId, how: String) {
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

    /// The line is taken down, and who broke it is put off. `reason` where nobody did.
    async fn line_broke(&mut self, reason: String, culprits: Vec<Culprit>) {
        let now = Instant::now();
        let reason = match culprits.first().map(|c| (self.members.get(&c.member), &c.how)) {
            Some((Some(member), how)) if !how.starts_with(&member.name()) => {
                format!("{}: {how}", member.name())
            }
            Some((_, how)) => how.clone(),
            None => reason,
        };
        let line = std::mem::replace(&mut self.line, Line::Down { again_at: now });
        self.building.abort_all();
        self.building = JoinSet::new();
        let stood = match line {
            Line::Up { since, stages } => {
                // The driver hears of it before a suspect is killed, which would look like another fault.
                // An error means that the driver has ended; `stop` follows.
                let _ = self.ends.events.send(LineEvent::Down { reason }).await;
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

    /// Lines fail again and again and all who are on them look well: one that joined is lying. The newest
    /// goes first; who is innocent is back when its doubt has passed.
    fn doubt_the_newest(&mut self, now: Instant) {
        if self.quick_failures < 2 {
            return;
        }
        let mut newest = self.members.values_mut().rev();
        if let Some(member) = newest.find(|m| m.has_joined() && m.doubts(now) == 0) {
            tracing::warn!(
                worker = member.name(),
                "the newest worker is left out: lines fail and nobody is seen to break them"
            );
            member.broke(now, BROKE_BADLY);
        }
    }

    /// Members of a line that is no more are looked at like all others.
    fn off_the_line(&mut self, stages: &[MemberId]) {
        for id in stages {
            if let Some(member) = self.members.get(id)
                && let Some(conn) = member.conn()
            {
                self.hearts.listen(*id, member.serial(), conn);
            }
        }
    }

    async fn lose(&mut self, culprit: Culprit) {
        let Culprit { member: id, how, .. } = culprit;
        self.hearts.stop(id);
        if let Some(member) = self.members.get_mut(&id) {
            tracing::warn!(worker = member.name(), why = how, "worker lost");
            member.lost(Instant::now(), how).await;
        }
    }

    // Words.

    /// What is lacking and who is there, to `/health`, and to the log when it is news.
    fn say(&mut self, lacking: &str) {
        let said = format!("{lacking}; {}", roll::call(&self.members));
        self.progress(said.clone());
        if said != self.said {
            tracing::info!("no line yet: {said}");
            self.said = said;
        }
    }

    fn progress(&self, what: String) {
        let status = Status::Loading { what, done_bytes: 0, total_bytes: 0 };
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
        self.hearts.stop_all();
        self.building.abort_all();
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

/// What a task brought; a panic of it is one of ours.
fn finished<T>(task: Result<T, tokio::task::JoinError>) -> T {
    task.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
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

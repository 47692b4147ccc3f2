//! The supervisor's part about workers that are to leave a line that is up: they are about to end, or an order waits for a worker
//! of the pool. Their layers move as soon as the others suffice.

use std::time::{Duration, Instant};

use brigade_line::admin::{Asked, Refused};

use super::next_line::LEAVER_WAITS;
use super::{Line, Supervisor};
use crate::members::conn::WorkerError;
use crate::members::member::Member;
use crate::reconcile::MemberId;

/// A worker that is on the line and is to leave it, as soon as the others suffice.
#[derive(Debug)]
pub(super) struct Leaver {
    pub id: MemberId,
    /// The order; `None`: it leaves by itself.
    asked: Option<Asked>,
    since: Instant,
}

impl Leaver {
    /// How long others may load before it: it goes in a while.
    fn waits(&self, now: Instant) -> Duration {
        LEAVER_WAITS.saturating_sub(now.saturating_duration_since(self.since))
    }
}

impl Supervisor {
    /// A member that is on the line takes no new one: it is about to leave. Its layers move when the others suffice, now or
    /// while it is still there.
    pub(super) fn wants_to_leave(&mut self, id: MemberId, error: WorkerError) {
        // It computes until the next line is ready.
        self.listen_until_it_is_gone(id);
        if self.ends.config.stage.cut.is_some() {
            let why = "the line is cut by hand";
            tracing::warn!(%error, why, "a worker is leaving, and the other workers cannot take its layers");
            return;
        }
        // No line can be built over it, for whatever reason the next one is built.
        self.set_drained(id);
        self.leavers.push(Leaver { id, asked: None, since: Instant::now() });
        match self.suffice(&self.others(id)) {
            Ok(()) => self.drain(id, None, Some(LEAVER_WAITS)),
            Err(why) => {
                tracing::warn!(%error, why, "a worker is leaving, and the other workers cannot take its layers yet: another worker may come");
                if self.next_line.as_ref().is_some_and(|coming| coming.counts_on(id)) {
                    self.give_up_coming(&error.to_string());
                }
            }
        }
    }

    /// Whether a member is about to end.
    pub(super) fn leaves_by_itself(&self, id: MemberId) -> bool {
        self.leavers.iter().any(|leaver| leaver.id == id && leaver.asked.is_none())
    }

    fn listen_until_it_is_gone(&mut self, id: MemberId) {
        let Line::Up { stages, .. } = &self.line else { return };
        let stage = stages.iter().position(|on| *on == id);
        if let Some((conn, stage)) = self.members.get(&id).and_then(Member::conn).zip(stage) {
            self.heartbeats.listen_to_a_leaver(id, conn, self.epoch, stage);
        }
    }

    /// The worker that an operator means, if an order about it may wait for another worker to be lent.
    pub(super) fn who_may_wait(&self, worker: &str) -> Option<MemberId> {
        let id = self.member_called(worker).ok()?;
        let by_hand = self.ends.config.stage.cut.is_some();
        let may = self.seat().is_some() && self.leavers.is_empty() && !by_hand;
        (may && self.is_on_line(id)).then_some(id)
    }

    /// A worker leaves the line when another one has been lent.
    pub(super) fn wait_for_another(&mut self, id: MemberId, asked: Asked) {
        tracing::info!(
            worker = self.members.get(&id).map(Member::name),
            "it is to leave the line, and the others do not suffice: the pool is asked for another one"
        );
        self.leavers.push(Leaver { id, asked: Some(asked), since: Instant::now() });
    }

    /// Begins the change for which workers wait that are to leave, if the others suffice by now. It is asked before each step,
    /// since a worker that joins, is lent or is undrained may be the one that was lacking.
    pub(super) fn let_leavers_go(&mut self) {
        for leaver in std::mem::take(&mut self.leavers) {
            let waiting = self.let_one_go(leaver);
            self.leavers.extend(waiting);
        }
    }

    /// Lets one go if that may be; it is returned if it is to be looked at again.
    fn let_one_go(&mut self, leaver: Leaver) -> Option<Leaver> {
        let waits = leaver.waits(Instant::now());
        let Leaver { id, asked, since } = leaver;
        let on_line = self.is_on_line(id);
        if on_line && self.next_line.is_some() {
            return Some(Leaver { id, asked, since });
        }
        let suffice = if on_line {
            self.suffice(&self.others(id))
        } else {
            Err("the line has changed meanwhile".to_owned())
        };
        let Some(asked) = asked else {
            if suffice.is_ok() {
                self.drain(id, None, Some(waits));
            }
            // The change may be given up: it is a leaver until it is on no line any more.
            return on_line.then_some(Leaver { id, asked, since });
        };
        let why = match suffice {
            Ok(()) => {
                self.drain(id, Some(asked), None);
                return None;
            }
            Err(why) => why,
        };
        // No worker can be lent now: the operator is told.
        let lacking = self.seat().map(|seat| seat.why()).filter(|why| !why.is_empty());
        if on_line && lacking.is_none() && !waits.is_zero() {
            return Some(Leaver { id, asked: Some(asked), since });
        }
        let why = lacking.map_or(why.clone(), |pool| format!("{why} (of the pool: {pool})"));
        tracing::warn!(why, "a worker is to leave, and the other workers cannot take its layers");
        let text = format!("the other workers do not suffice: {why}");
        // The client may have gone.
        let _ = asked.reply.send(Err(Refused(text)));
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use brigade_line::admin::{Admin, Question};
    use brigade_line::health::Roll;
    use brigade_line::stages::stale::StaleTimes;
    use brigade_proto::address::FIRST_STAGE;
    use brigade_proto::net::Network;
    use tokio::sync::{mpsc, oneshot, watch};

    use super::*;
    use crate::config::{ClusterConfig, Patience, Source};
    use crate::members::conn::Conn;
    use crate::members::member::BROKE_BADLY;
    use crate::members::member::Origin;
    use crate::members::own_name::OwnName;
    use crate::members::placed_stage::Pace;
    use crate::pool::Demand;
    use crate::pool::tests::{capable, demand};
    use crate::reconcile::{DEFAULT_REPLACE_AFTER, DEFAULT_SLOW_AFTER};
    use crate::supervisor::Ends;

    /// Layers of the demo model.
    const LAYERS: usize = 6;

    /// A supervisor without a pool, whose line is up over so many workers.
    async fn up_over(workers: usize) -> Supervisor {
        let Demand { model, options, .. } = demand();
        let n_ctx = options.ctx.unwrap();
        let config = ClusterConfig {
            source: Source::JoinOnly,
            control: None,
            expect: 1,
            network: Network::plain(false),
            pki: None,
            how_to_join: None,
            patience: Patience::Forever,
            replace_after: DEFAULT_REPLACE_AFTER,
            rebalance: false,
            slow_after: DEFAULT_SLOW_AFTER,
            stage: options,
        };
        let mut supervisor = Supervisor::new(Ends {
            config: Arc::new(config),
            seat: None,
            model,
            coordinator_id: "test".to_owned(),
            own_name: OwnName::fresh(),
            events: mpsc::channel(1).0,
            faults: mpsc::channel(1).1,
            joins: None,
            asked: Admin::channel().1,
            roll: watch::channel(Roll::default()).0,
        });
        let mut stages = Vec::new();
        for _ in 0..workers {
            stages.push(joins(&mut supervisor).await);
        }
        let border = |stage: usize| LAYERS * stage / workers;
        let pace = Pace { computing_us: 1.0, sending_us: 0.0, slowdown: 1.0 };
        supervisor.line = Line::Up {
            stages,
            layers: (0..workers).map(|stage| border(stage)..border(stage + 1)).collect(),
            paces: vec![pace; workers],
            stale: StaleTimes::new(workers),
            n_ctx,
            since: Instant::now(),
        };
        supervisor
    }

    /// A worker that has room for the whole model joins.
    async fn joins(supervisor: &mut Supervisor) -> MemberId {
        let (id, now) = (supervisor.next_id, Instant::now());
        let conn = Conn::mute(&format!("w{id}"), FIRST_STAGE, capable(None)).await;
        let mut member = Member::new(Origin::Joined(conn.address().clone()), now);
        member.connected(now, None, conn);
        supervisor.next_id += 1;
        supervisor.members.insert(id, member);
        id
    }

    /// A heartbeat says that the worker drains.
    fn leaves(supervisor: &mut Supervisor, id: MemberId) {
        let worker = supervisor.members[&id].name();
        supervisor.wants_to_leave(id, WorkerError::Busy { worker, reason: "it drains".to_owned() });
        supervisor.let_leavers_go();
    }

    fn change(supervisor: &Supervisor) -> Option<&str> {
        supervisor.next_line.as_ref().map(|coming| coming.what.as_str())
    }

    #[tokio::test]
    async fn a_worker_that_leaves_goes_when_another_one_comes() {
        let mut supervisor = up_over(1).await;
        leaves(&mut supervisor, 0);
        assert_eq!(change(&supervisor), None, "nobody can take its layers");
        assert!(supervisor.usable().is_empty(), "and it takes no new ones");
        joins(&mut supervisor).await;
        supervisor.let_leavers_go();
        assert_eq!(change(&supervisor), Some("w0 is drained"));
    }

    #[tokio::test]
    async fn workers_that_leave_together_do_not_take_each_others_layers() {
        let mut supervisor = up_over(2).await;
        leaves(&mut supervisor, 0);
        assert_eq!(change(&supervisor), Some("w0 is drained"), "the other one has room");
        leaves(&mut supervisor, 1);
        assert_eq!(change(&supervisor), None, "it counted on the other one");
        let third = joins(&mut supervisor).await;
        supervisor.let_leavers_go();
        assert!(change(&supervisor).is_some());
        assert_eq!(supervisor.usable(), [third]);
    }

    #[tokio::test]
    async fn the_line_stays_where_the_worker_that_was_to_take_the_layers_is_lost() {
        let mut supervisor = up_over(1).await;
        leaves(&mut supervisor, 0);
        let second = joins(&mut supervisor).await;
        supervisor.let_leavers_go();
        assert!(change(&supervisor).is_some());
        let how = "it went silent".to_owned();
        supervisor.members.get_mut(&second).unwrap().lost(Instant::now(), how.clone()).await;
        supervisor.loaded_ahead(Err(how)).await;
        assert!(supervisor.is_on_line(0) && change(&supervisor).is_none());
        assert_eq!(
            supervisor.forgetting.len(),
            1,
            "workers are told to let go of what they loaded"
        );
        joins(&mut supervisor).await;
        supervisor.let_leavers_go();
        assert_eq!(change(&supervisor), Some("w0 is drained"), "the next one takes them");
        assert!(supervisor.forgetting.is_empty(), "and waits until all have let go");
    }

    #[tokio::test]
    async fn an_order_that_is_given_up_leaves_its_worker_as_it_was() {
        let mut supervisor = up_over(1).await;
        let second = joins(&mut supervisor).await;
        let (reply, answer) = oneshot::channel();
        supervisor.drain(0, Some(Asked { question: Question::Status, reply }), None);
        assert_eq!(supervisor.usable(), [second]);
        let how = "it went silent".to_owned();
        supervisor.members.get_mut(&second).unwrap().lost(Instant::now(), how.clone()).await;
        supervisor.loaded_ahead(Err(how)).await;
        assert!(answer.await.unwrap().is_err());
        assert_eq!(supervisor.usable(), [0], "the next line may be built over it");
    }

    #[tokio::test]
    async fn an_order_trusts_a_worker_again_and_a_refused_one_does_not() {
        let mut supervisor = up_over(1).await;
        let second = joins(&mut supervisor).await;
        let broken = supervisor.members.get_mut(&second).unwrap();
        broken.broke(Instant::now(), BROKE_BADLY);
        assert!(supervisor.may_move("w1", &(LAYERS..LAYERS + 1)).is_err());
        assert_eq!(supervisor.usable(), [0], "there are no such layers");
        supervisor.may_move("w1", &(LAYERS / 2..LAYERS)).unwrap();
        assert_eq!(supervisor.usable(), [0, second]);
    }

    #[tokio::test]
    async fn who_is_on_no_line_any_more_waits_for_nobody() {
        let mut supervisor = up_over(1).await;
        leaves(&mut supervisor, 0);
        assert_eq!(supervisor.leavers.len(), 1);
        supervisor.line = Line::Down { again_at: Instant::now() };
        supervisor.let_leavers_go();
        assert!(supervisor.leavers.is_empty());
    }
}

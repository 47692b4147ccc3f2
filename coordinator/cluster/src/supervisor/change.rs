//! The supervisor's part about planned changes: an operator's orders, a worker that wants to leave, and a cut that pays.
//!
//! A planned change takes down a line that works, and builds the next one over other workers. Workers that stay keep
//! their layers, requests go on there, and no worker is trusted less. Before the line is taken down it is certain
//! that the others suffice, and its stages are told to keep the states of their sequences. Workers that have no
//! layers any more keep theirs beside the next line, until all sequences have their states there.

use brigade_proto::task;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use brigade_plan::format_bytes;
use brigade_proto::address::Address;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Line, Supervisor};
use crate::building::place::{self, Placement};
use crate::members::conn::Conn;
use crate::members::departed::Left;
use crate::members::member::Member;
use crate::members::placed_stage::Pace;
use crate::members::roll;
use crate::pki::Pki;
use crate::reconcile::MemberId;
use brigade_line::admin::{Answer, Asked, Question, Refused};
use brigade_line::stages::link::LineEvent;
use brigade_line::stages::open_line::Moved;
use brigade_proto::task::joined;

/// How many times faster the slowest stage must become, by the plan, for a cut without an order ...
const PAYS: f64 = 1.15;

/// ... and for one that an operator asked for.
const PAYS_WHEN_ASKED: f64 = 1.02;

/// How long a line and the workers beyond it must have been stable before layers are cut anew without an order. So
/// workers that join in a row are used together, and workers that come and go are not.
const STANDS: Duration = Duration::from_secs(30);

/// Least time between two cuts without an order.
const REBALANCE_EVERY: Duration = Duration::from_secs(300);

/// Digits of a key that name a worker.
const MIN_KEY_DIGITS: usize = 8;

/// How long a line may take to finish its sequences before it is taken down with them.
const PART_WITHIN: Duration = Duration::from_secs(10);

/// A change that is under way: an order is answered when streams go on.
#[derive(Debug)]
pub(super) struct Change {
    asked: Option<Asked>,
    what: String,
    begun: Instant,
    /// Members of the line before it, and the longest context of its sequences.
    before: Vec<MemberId>,
    pub(super) n_ctx: u32,
    /// Stages of the line that it made, and bytes of weights that were read for that.
    n_stages: usize,
    read_bytes: u64,
    /// Bytes of weights that were read while the line before it ran.
    ahead_bytes: u64,
    /// Epoch in which spares loaded them.
    spare_epoch: u64,
    /// Keeps those spares ours until the next line is up.
    spares: Option<Placement>,
}

/// Notes about cuts that were made without an order.
#[derive(Debug, Default)]
pub(super) struct Rebalancing {
    last: Option<Instant>,
    /// Members, by their connections, of which it is known that a new cut does not pay.
    in_vain: Vec<(MemberId, u64)>,
    /// A worker was found to be slower than it says, or not any more.
    speeds_changed: bool,
}

/// Whether these are the first digits of a key, and enough of them.
fn is_key_of(digits: &str, key: Option<&str>) -> bool {
    digits.len() >= MIN_KEY_DIGITS && key.is_some_and(|key| key.starts_with(digits))
}

impl Supervisor {
    /// Handles an operator's question or order.
    pub(super) async fn asked(&mut self, asked: Asked) {
        let is_change = matches!(
            &asked.question,
            Question::Drain { .. } | Question::Move { .. } | Question::Rebalance
        );
        let answer = match &asked.question {
            _ if is_change && self.next_line.is_some() => Err(self.refuse_while_coming()),
            Question::Status => Ok(Answer::Status(self.status())),
            Question::Cache | Question::DropCache { .. } => {
                Err(Refused("this process cannot list kept states".to_owned()))
            }
            Question::Models
            | Question::Load { .. }
            | Question::Unload { .. }
            | Question::Pin { .. } => {
                Err(Refused("all models of this server are loaded when it starts".to_owned()))
            }
            Question::Add { worker } => self.add(worker),
            Question::Drain { worker } => match self.may_drain(&worker.clone()) {
                Ok((id, true)) => return self.drain(id, Some(asked), None),
                Ok((id, false)) => {
                    let name = self.members.get(&id).map(Member::name).unwrap_or_default();
                    Ok(Answer::Done(format!(
                        "{name} has no layers, and is given none until it is undrained"
                    )))
                }
                Err(refused) => match self.who_may_wait(&worker.clone()) {
                    Some(id) => return self.wait_for_another(id, asked),
                    None => Err(refused),
                },
            },
            Question::Move { worker, layers } => match self.may_move(worker, layers) {
                Ok((ordered, name)) => {
                    let what = format!("layers {layers:?} are moved to {name}");
                    self.ordered = Some(ordered);
                    return self.change(what, Some(asked), None);
                }
                Err(refused) => Err(refused),
            },
            Question::Undrain { worker } => self.undrain(worker),
            // An operator who orders it knows that workers which broke lines are well again.
            Question::Rebalance => match self.gain(&self.there_for_layers()) {
                Some(gain) if gain >= PAYS_WHEN_ASKED => {
                    self.there_for_layers().into_iter().for_each(|id| self.trust(id));
                    let what =
                        format!("rebalanced: {:.0} % faster by the plan", (gain - 1.0) * 1e2);
                    return self.change(what, Some(asked), None);
                }
                Some(gain) => Ok(Answer::Done(format!(
                    "nothing is moved: the best cut would be {:.1} % faster",
                    (gain - 1.0).max(0.0) * 1e2
                ))),
                None => Err(Refused("there is no line that could be cut anew".to_owned())),
            },
        };
        // The client may have gone.
        let _ = asked.reply.send(answer);
    }

    fn refuse_while_coming(&self) -> Refused {
        let what = self.next_line.as_ref().map_or("", |coming| &coming.what);
        Refused(format!("another change is under way ({what}): ask again when it is done"))
    }

    fn add(&mut self, worker: &str) -> Result<Answer, Refused> {
        let pki = self.ends.config.pki.as_ref();
        let named = pki.and_then(|pki| Pki::address_of(pki.folder(), worker).ok().flatten());
        let at = named.as_deref().unwrap_or(worker);
        let address =
            at.parse::<Address>().map_err(|error| Refused(format!("{worker}: {error}")))?;
        self.add_at(address)?;
        let text = format!("{worker} is dialled; `brigade cluster status` says when it is there");
        Ok(Answer::Done(text))
    }

    /// Checks that a line over these members can hold all sequences of the present one.
    pub(super) fn suffice(&mut self, ids: &[MemberId]) -> Result<(), String> {
        let n_ctx = match &self.line {
            Line::Up { n_ctx, .. } => Some(*n_ctx),
            Line::Down { .. } | Line::Building { .. } => None,
        };
        self.fits.ask_for(&self.members, ids, n_ctx)
    }

    /// The member with this name, and whether it is on the line. If so, the other members suffice without it.
    fn may_drain(&mut self, worker: &str) -> Result<(MemberId, bool), Refused> {
        let id = self.member_called(worker)?;
        self.refuse_if_cut_by_hand()?;
        if !self.is_on_line(id) {
            self.set_drained(id);
            return Ok((id, false));
        }
        self.suffice(&self.others(id))
            .map_err(|why| Refused(format!("the other workers do not suffice: {why}")))?;
        Ok((id, true))
    }

    /// A member that was drained may have layers again.
    fn undrain(&mut self, worker: &str) -> Result<Answer, Refused> {
        let id = self.member_called(worker)?;
        if self.leaves_by_itself(id) {
            return Err(Refused(format!("{worker} is about to end: start it again")));
        }
        let member = self.members.get_mut(&id);
        let Some((name, was_drained)) = member.map(|member| {
            let was = member.is_drained();
            member.undrain();
            member.trust();
            (member.name(), was)
        }) else {
            return Err(Refused(format!("{worker} has just left")));
        };
        Ok(Answer::Done(match (was_drained, &self.line) {
            (false, _) => format!("{name} was not drained"),
            (true, Line::Up { .. }) => format!(
                "{name} is spare: it gets layers when the line is next built, or now by brigade cluster rebalance"
            ),
            (true, _) => format!("{name} gets layers when the line is built"),
        }))
    }

    /// The member that an operator means: by its name, its address, or the beginning of its key.
    pub(super) fn member_called(&self, worker: &str) -> Result<MemberId, Refused> {
        let is_it = |m: &Member| {
            let known = m.known();
            let by_key = known.is_some_and(|k| is_key_of(worker, k.key.as_deref()));
            m.name() == worker
                || m.origin.name() == worker
                || known.is_some_and(|k| k.address == worker)
                || m.origin.address() == worker
                || by_key
        };
        let found: Vec<MemberId> =
            self.members.iter().filter(|(_, m)| is_it(m)).map(|(id, _)| *id).collect();
        match found.as_slice() {
            [one] => Ok(*one),
            [] => Err(self.refuse_stranger(worker)),
            several => {
                let known =
                    |id: &MemberId| self.members.get(id)?.known().map(|k| k.address.clone());
                let addresses = roll::list(several.iter().filter_map(known));
                Err(Refused(format!(
                    "several are called {worker}: name one by its address: {addresses}"
                )))
            }
        }
    }

    /// The refusal for an unknown name. Machines that left are still known, since `status` shows them.
    fn refuse_stranger(&self, worker: &str) -> Refused {
        let is_it = |left: &&Left| {
            left.name == worker || left.address == worker || is_key_of(worker, left.key.as_deref())
        };
        if let Some(Left { name, why, .. }) = self.departed.left().find(is_it) {
            return Refused(format!(
                "{name} is lost and has no layers ({why}): start its worker again, or put it out with `brigade revoke \
                 {name}`"
            ));
        }
        let names = roll::list(self.members.values().map(Member::name));
        Refused(format!(
            "no worker is called {worker:?}; there are {names}. A machine is named by its name, its address, or the \
             first {MIN_KEY_DIGITS} digits or more of its key"
        ))
    }

    pub(super) fn refuse_if_cut_by_hand(&self) -> Result<(), Refused> {
        match self.ends.config.stage.cut {
            None => Ok(()),
            Some(_) => Err(Refused(
                "the line is cut by hand, over workers that are named: start it with another cut"
                    .to_owned(),
            )),
        }
    }

    /// Moves the layers of a member to others.
    pub(super) fn drain(&mut self, id: MemberId, asked: Option<Asked>, within: Option<Duration>) {
        let name = self.members.get(&id).map(Member::name).unwrap_or_default();
        let by_order = asked.is_some() && !self.members.get(&id).is_some_and(Member::is_drained);
        self.set_drained(id);
        self.change(format!("{name} is drained"), asked, within);
        if let Some(coming) = self.next_line.as_mut().filter(|_| by_order) {
            coming.drains = Some(id);
        }
    }

    /// Takes the line down in order, so that the next one is built, for which so many bytes were loaded and spares were
    /// taken in that epoch.
    pub(super) async fn take_down(
        &mut self,
        what: String,
        asked: Option<Asked>,
        ahead_bytes: u64,
        spare_epoch: u64,
        spares: Option<Placement>,
    ) {
        if !matches!(self.line, Line::Up { .. }) {
            return;
        }
        tracing::info!(what, "the line changes");
        let begun = Instant::now();
        self.part().await;
        // Sequences have the states of the change before this one: a line that parts waits for them.
        let moved = match self.settling.try_join_next() {
            Some(settled) => joined(settled).await,
            None => None,
        };
        if self.change.is_some() {
            self.settled(Some(moved.unwrap_or_default()));
        }
        let down = Line::Down { again_at: Instant::now() };
        let Line::Up { stages, n_ctx, .. } = std::mem::replace(&mut self.line, down) else {
            return;
        };
        let (what_for, before) = (what.clone(), stages.clone());
        self.change = Some(Change {
            asked,
            what: what_for,
            begun,
            before,
            n_ctx,
            n_stages: 0,
            read_bytes: 0,
            ahead_bytes,
            spare_epoch,
            spares,
        });
        // An error means that the driver has ended; `stop` follows.
        let _ = self.ends.events.send(LineEvent::Down { reason: what, planned: true }).await;
        self.off_the_line(&stages);
        while self.ends.faults.try_recv().is_ok() {}
        self.goal.last_line = self.usable().len().min(self.goal.last_line);
    }

    /// Has the stages keep the states of their sequences, if the line runs empty in time.
    async fn part(&mut self) {
        let (done, parted) = oneshot::channel();
        // An error means that the driver has ended; `stop` follows.
        let _ = self.ends.events.send(LineEvent::Part { done }).await;
        let why = match timeout(PART_WITHIN, parted).await {
            Ok(Ok(())) => return,
            Ok(Err(_)) => "the line broke meanwhile",
            Err(_) => "ubatches in flight did not end in time",
        };
        tracing::warn!(
            why,
            "the states of the line cannot move to the next one: its streams are computed again"
        );
    }

    /// All workers that are connected.
    pub(super) fn all_conns(&self) -> Vec<Conn> {
        self.members.values().filter_map(|member| member.conn().cloned()).collect()
    }

    /// Workers that may have states of sequences for the next line.
    pub(super) fn before(&self) -> Vec<(MemberId, Conn)> {
        let before = self.change.as_ref().map_or(&[][..], |change| &change.before);
        let conn = |id: &MemberId| Some((*id, self.members.get(id)?.conn()?.clone()));
        before.iter().filter_map(conn).collect()
    }

    /// Notes that a line is up. The returned sender is to be used when its sequences have their states.
    pub(super) fn changed(&mut self, n_stages: usize, read_bytes: u64) -> oneshot::Sender<Moved> {
        if let Some(change) = &mut self.change {
            (change.n_stages, change.read_bytes) = (n_stages, change.read_bytes + read_bytes);
        }
        let (told, settled) = oneshot::channel();
        self.settling = JoinSet::new();
        self.settling.spawn(async move { settled.await.ok() });
        told
    }

    /// All streams go on: the operator is told, and workers drop kept states. `None`: the line is gone, and the next
    /// one is waited for.
    pub(super) fn settled(&mut self, moved: Option<Moved>) {
        let Some(moved) = moved else { return };
        let change = self.change.take();
        self.let_go(change.as_ref().map_or(&[], |change| &change.before));
        let Some(change) = change else { return };
        let Change {
            asked,
            what,
            begun,
            n_stages,
            read_bytes,
            ahead_bytes,
            spares,
            spare_epoch,
            ..
        } = change;
        drop(spares);
        self.free_spares(spare_epoch);
        let ms = begun.elapsed().as_millis();
        let Moved { sequences, bytes } = moved;
        tracing::info!(
            what,
            ms,
            n_stages,
            ahead_bytes,
            read_bytes,
            sequences,
            state_bytes = bytes,
            "the line has changed"
        );
        if let Some(asked) = asked {
            let [ahead, weights, states] = [ahead_bytes, read_bytes, bytes].map(format_bytes);
            let text = format!(
                "{what}; {n_stages} stages, streams paused for {ms} ms; {ahead} of weights loaded before, {weights} in \
                 the pause; {states} of states moved"
            );
            // The client may have gone.
            let _ = asked.reply.send(Ok(Answer::Done(text)));
        }
    }

    /// Drops states that were kept for the line that is up, also those of an earlier coordinator, and frees workers
    /// without layers on it.
    fn let_go(&self, before: &[MemberId]) {
        let Line::Up { stages, .. } = &self.line else { return };
        let epoch = self.epoch;
        let all: BTreeSet<&MemberId> = stages.iter().chain(before).collect();
        for id in all {
            let Some(conn) = self.members.get(id).and_then(Member::conn).cloned() else { continue };
            let is_on_line = stages.contains(id);
            task::spawn(async move {
                if is_on_line { conn.settle(epoch).await } else { conn.unload(epoch).await }
            });
        }
    }

    /// Cuts the layers anew where that pays, if the operator lets us.
    pub(super) fn rebalance_if_it_pays(&mut self) {
        // One computes slower than planned, or not any more.
        self.rebalancing.speeds_changed |= self.speeds_changed();
        if !self.ends.config.rebalance || self.next_line.is_some() {
            return;
        }
        let Line::Up { stages, since, .. } = &self.line else { return };
        let recent = |at: Instant, time: Duration| at.elapsed() < time;
        let changed = self.rebalancing.speeds_changed;
        if (recent(*since, STANDS) && !changed)
            || self.rebalancing.last.is_some_and(|at| recent(at, REBALANCE_EVERY))
        {
            return;
        }
        let now = Instant::now();
        let spare = |(id, m): &(&MemberId, &Member)| {
            m.connected_for(now).is_some_and(|time| time >= STANDS)
                && m.doubts(now) == 0
                && !m.is_drained()
                && !stages.contains(id)
        };
        let spares: Vec<(MemberId, u64)> =
            self.members.iter().filter(spare).map(|(id, m)| (*id, m.serial())).collect();
        if !changed && (spares.is_empty() || spares == self.rebalancing.in_vain) {
            return;
        }
        self.rebalancing.speeds_changed = false;
        match self.gain(&self.usable()) {
            Some(gain) if gain >= PAYS => {
                self.rebalancing.last = Some(now);
                let what = format!("rebalanced: {:.0} % faster by the plan", (gain - 1.0) * 1e2);
                self.change(what, None, None);
            }
            _ => self.rebalancing.in_vain = spares,
        }
    }

    /// The speed-up by the best cut over these workers: the ratio of the slowest stages' times, by present
    /// measurements. `None` without a line, or where it is cut by hand.
    fn gain(&self, over: &[MemberId]) -> Option<f64> {
        let Line::Up { stages, paces, .. } = &self.line else { return None };
        let config = &self.ends.config.stage;
        if config.cut.is_some() {
            return None;
        }
        let conn = |id: &MemberId| self.members.get(id)?.conn();
        let unit_us = |(id, pace): (&MemberId, &Pace)| Some(pace.unit_us(conn(id)?.slowdown()));
        let now: Vec<f64> = stages.iter().zip(paces).filter_map(unit_us).collect();
        let slowest = now.into_iter().fold(0.0, f64::max);
        let plan = place::plan_over(&self.ends.model, over.iter().filter_map(conn), config).ok()?;
        Some(slowest / plan.slowest_us())
    }

    /// Connected members that may have layers, those that broke lines lately too.
    pub(super) fn there_for_layers(&self) -> Vec<MemberId> {
        let may = |(_, m): &(&MemberId, &Member)| m.conn().is_some() && !m.is_drained();
        self.members.iter().filter(may).map(|(id, _)| *id).collect()
    }

    /// Connected members that the next line may use.
    pub(super) fn usable(&self) -> Vec<MemberId> {
        let now = Instant::now();
        let trusted = |id: &MemberId| self.members.get(id).is_some_and(|m| m.doubts(now) == 0);
        self.there_for_layers().into_iter().filter(trusted).collect()
    }

    /// The lines that a member broke are forgotten.
    pub(super) fn trust(&mut self, id: MemberId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.trust();
        }
    }

    pub(super) fn others(&self, id: MemberId) -> Vec<MemberId> {
        self.usable().into_iter().filter(|other| *other != id).collect()
    }

    pub(super) fn is_on_line(&self, id: MemberId) -> bool {
        matches!(&self.line, Line::Up { stages, .. } if stages.contains(&id))
    }

    pub(super) fn set_drained(&mut self, id: MemberId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.drain();
        }
    }
}

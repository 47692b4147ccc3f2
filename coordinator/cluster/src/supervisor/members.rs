//! The supervisor's part about members: how they join, connect, refuse, are put off, and are forgotten.

use std::time::Instant;

use brigade_proto::address::Address;

use super::{GiveUp, Line, Supervisor};
use crate::config::{Patience, Source};
use crate::members::conn::WorkerError;
use crate::members::departed::{self, Left};
use crate::members::dial::{self, Connected, Dial};
use crate::members::member::{BROKE_BADLY, Member, Origin};
use crate::members::roll;
use crate::pool::Returned;
use crate::reconcile::MemberId;

/// Times that even an impatient command asks a busy worker: with the pauses between them longer than
/// the lease of a coordinator that has died.
const BUSY_TRIES: u32 = 5;

/// Workers that joined and have not shaken hands, at once: joining proves nothing.
const MAX_UNPROVEN: usize = 64;

/// Members at once; as many as a plan can have.
const MAX_MEMBERS: usize = brigade_plan::MAX_WORKERS;

impl Supervisor {
    pub(super) fn joined(&mut self, address: Address) {
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
            return self.does_not_borrow(&address);
        }
        if unproven >= MAX_UNPROVEN || self.members.len() >= MAX_MEMBERS {
            // It joins again by itself.
            let (members, why) = (self.members.len(), "too many workers are joining");
            tracing::debug!(worker = %address, unproven, members, "{why}");
            return self.does_not_borrow(&address);
        }
        let id = self.next_id;
        self.next_id += 1;
        self.members.insert(id, Member::new(Origin::Joined(address), now));
        self.connect(id);
    }

    /// Dials or starts a member, in the background.
    pub(super) fn connect(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.connecting(Instant::now());
        let config = &self.ends.config;
        let dial = Dial {
            origin: member.origin.clone(),
            called: member.known().map(|known| known.name.clone()),
            local: match &config.source {
                Source::Local(options) => Some((**options).clone()),
                Source::Remote(_) | Source::JoinOnly => None,
            },
            coordinator_id: self.ends.coordinator_id.clone(),
            network: config.network.clone(),
            // Without a control address all workers are children, and speak plain on this machine.
            pki: config.control.as_ref().and(config.pki.clone()),
            needs: Some(self.needs.clone()),
        };
        self.attempts.spawn(async move { (id, dial::connect(dial).await) });
    }

    pub(super) fn connected(&mut self, id: MemberId, connected: Connected) {
        let now = Instant::now();
        let Connected { child, conn } = connected;
        let Some(member) = self.members.get_mut(&id) else { return };
        let is_new = !member.is_proven();
        member.connected(now, child, conn.clone());
        self.heartbeats.listen(id, &conn);
        if let Origin::Joined(address) = member.origin.clone()
            && is_new
        {
            let name = member.name();
            tracing::info!(worker = name, %address, "worker joined");
            if matches!(self.line, Line::Up { .. }) {
                tracing::info!(
                    worker = name,
                    "the worker takes layers when the line is next built"
                );
            }
            // A lent worker was in the pool before, and takes no other worker's place.
            if self.ends.seat.is_none() {
                self.takes_a_place(id, &address, now);
            }
        }
    }

    /// A newcomer on a host where workers broke lines and left is in their place.
    pub(super) fn takes_a_place(&mut self, id: MemberId, address: &Address, now: Instant) {
        let left = |m: &Member| match &m.origin {
            Origin::Joined(other) => m.conn().is_none() && departed::same_host(other, address),
            Origin::Local(_) | Origin::Remote(_) => false,
        };
        let before: Vec<MemberId> =
            self.members.iter().filter(|(_, m)| left(m)).map(|(id, _)| *id).collect();
        // A worker that came back was not replaced; the newest loss is the likeliest.
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

    pub(super) async fn not_connected(
        &mut self,
        id: MemberId,
        error: WorkerError,
    ) -> Result<(), GiveUp> {
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

    /// A worker that joined did not complete the handshake: it is forgotten.
    pub(super) fn refuse_newcomer(&mut self, id: MemberId, error: &WorkerError) {
        let Some(member) = self.members.remove(&id) else { return };
        self.is_forgotten(&member, Returned::Refused);
        if let Origin::Joined(address) = &member.origin
            && self.departed.refused(address, &error.to_string(), Instant::now())
        {
            tracing::warn!(worker = %address, %error, "a worker that joined is refused");
        }
    }

    /// A member is absent until its next attempt is due, by what kept it from working.
    pub(super) async fn put_off(&mut self, id: MemberId, error: &WorkerError) {
        self.heartbeats.stop(id);
        let Some(member) = self.members.get_mut(&id) else { return };
        let (now, why) = (Instant::now(), error.to_string());
        match error {
            WorkerError::Busy { .. } | WorkerError::NoDisk { passes: true, .. } => {
                member.is_busy(now, why).await;
            }
            WorkerError::Refused { .. } | WorkerError::NoDisk { .. } => {
                member.refused(now, why).await
            }
            _ => member.lost(now, why).await,
        }
    }

    /// Whether a permanent failure of this member ends everything. Failures of workers that joined do not.
    pub(super) fn gives_up_on(&self, member: &Member, error: &WorkerError) -> bool {
        if member.has_joined() {
            return false;
        }
        match (self.ends.config.patience, error) {
            (
                Patience::FailFast,
                WorkerError::Busy { .. } | WorkerError::NoDisk { passes: true, .. },
            ) => member.failures() > BUSY_TRIES,
            (Patience::FailFast, _) => true,
            (Patience::Forever, WorkerError::Start { .. }) => !self.goal.was_up,
            (Patience::Forever, _) => false,
        }
    }

    pub(super) fn forget(&mut self, id: MemberId) {
        self.heartbeats.stop(id);
        let Some(member) = self.members.remove(&id) else { return };
        let now = Instant::now();
        let how = if member.has_broken(now) { Returned::Doubted } else { Returned::Spare };
        self.is_forgotten(&member, how);
        if let Origin::Joined(address) = &member.origin {
            if member.has_broken(now) {
                self.departed.left_doubted(address, now);
            }
            let why = roll::without_name(&member, member.why().unwrap_or(""));
            tracing::info!(worker = member.name(), why, "worker left");
            if let Some(known) = member.known().cloned() {
                let (name, address, key) = (known.name, known.address, known.key);
                let at = member.lost_at().unwrap_or(now);
                self.departed.has_left(Left { name, address, key, at, why });
            }
        }
    }
}

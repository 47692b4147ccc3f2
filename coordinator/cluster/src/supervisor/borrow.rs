//! The supervisor's part about a shared pool of workers: tells the pool what the line lacks, and gives workers back.

use std::sync::Arc;
use std::time::Instant;

use brigade_line::admin::Refused;
use brigade_proto::address::Address;

use super::{Line, Supervisor};
use crate::members::conn::WorkerError;
use crate::members::member::{Member, Origin};
use crate::pool::{Returned, Seat, Want};
use crate::reconcile::MemberId;

impl Supervisor {
    pub(super) fn seat(&self) -> Option<Arc<Seat>> {
        self.ends.seat.clone()
    }

    /// Tells the pool what the line lacks, takes the workers that are lent, and gives back those that the line does
    /// not need.
    pub(super) fn deal_with_the_pool(&mut self) {
        let Some(seat) = self.seat() else { return };
        let now = Instant::now();
        let want = match &self.line {
            Line::Building { .. } => None,
            Line::Down { .. } => Some(Want {
                without: self.without(|m| !may_serve(m, now)),
                at_least: if self.goal.was_up {
                    self.goal.last_line.max(1)
                } else {
                    self.goal.expect.max(1)
                },
                makes_do: self.goal.was_up,
                least_ctx: None,
            }),
            // Another one is not wanted while the next line loads.
            Line::Up { .. } if self.leavers.is_empty() || self.next_line.is_some() => None,
            Line::Up { stages, n_ctx, .. } => {
                let mut without = self.without(|m| !may_serve(m, now));
                for leaver in &self.leavers {
                    let leaves = self.members.get(&leaver.id).and_then(address_of);
                    without.extend(leaves.filter(|address| !without.contains(address)));
                }
                let (at_least, least_ctx) = (stages.len(), Some(*n_ctx));
                Some(Want { without, at_least, makes_do: true, least_ctx })
            }
        };
        seat.want(want);
        while let Some(address) = self.ends.joins.as_mut().and_then(|joins| joins.try_recv().ok()) {
            self.joined(address);
        }
        self.give_back_spares(&seat, now);
    }

    fn without(&self, is_of_no_use: impl Fn(&Member) -> bool) -> Vec<Address> {
        self.members.values().filter(|m| is_of_no_use(m)).filter_map(address_of).collect()
    }

    /// Gives workers that are not on the line back to the pool, once no sequence's state may still be fetched from
    /// them.
    fn give_back_spares(&mut self, seat: &Arc<Seat>, now: Instant) {
        let Line::Up { stages, .. } = &self.line else { return };
        let is_settled = self.change.is_none() && self.settling.is_empty();
        if self.next_line.is_some() || !self.leavers.is_empty() || !is_settled {
            return;
        }
        let is_spare = |(id, m): &(&MemberId, &Member)| {
            m.has_joined() && m.conn().is_some() && !m.is_drained() && !stages.contains(id)
        };
        let spares: Vec<MemberId> =
            self.members.iter().filter(is_spare).map(|(id, _)| *id).collect();
        for id in spares {
            let Some(member) = self.members.get(&id) else { continue };
            let how = if member.doubts(now) > 0 { Returned::Doubted } else { Returned::Spare };
            tracing::info!(worker = member.name(), "a worker goes back to the pool");
            self.give_back(seat, id, how);
        }
    }

    /// A worker that was lent will not take its stage: it goes back, and the pool knows when it is asked again. Returns whether
    /// that is so; else it is put off like others.
    pub(super) fn is_declined(&mut self, id: MemberId, error: &WorkerError) -> bool {
        let Some(seat) = self.seat().filter(|_| error.is_refusal()) else { return false };
        let Some(address) = self.members.get(&id).and_then(address_of) else { return false };
        let of_disk = matches!(error, WorkerError::NoDisk { .. });
        seat.declined(&address, &error.to_string(), of_disk);
        self.give_back(&seat, id, Returned::Spare);
        true
    }

    /// Gives all workers that are connected back to the pool, which may choose others.
    pub(super) fn give_all_back(&mut self) {
        let Some(seat) = self.seat() else { return };
        let lent = |m: &Member| m.has_joined() && m.conn().is_some() && !m.is_drained();
        let all = self.members.iter().filter(|(_, m)| lent(m)).map(|(id, _)| *id);
        for id in all.collect::<Vec<_>>() {
            self.give_back(&seat, id, Returned::Spare);
        }
    }

    fn give_back(&mut self, seat: &Arc<Seat>, id: MemberId, how: Returned) {
        self.heartbeats.stop(id);
        let Some(member) = self.members.remove(&id) else { return };
        if let Some(address) = address_of(&member) {
            seat.give_back(&address, how, member.conn().cloned());
        }
    }

    /// A member is no more; if it was lent, it is the pool's.
    pub(super) fn is_forgotten(&self, member: &Member, how: Returned) {
        if let Some((seat, address)) = self.seat().zip(address_of(member)) {
            seat.give_back(&address, how, None);
        }
    }

    /// A worker that was lent is not wanted, since it refused a moment ago.
    pub(super) fn does_not_borrow(&self, address: &Address) {
        if let Some(seat) = self.seat() {
            seat.give_back(address, Returned::Refused, None);
        }
    }

    /// A worker at this address is to be one of the cluster.
    pub(super) fn add_at(&mut self, address: Address) -> Result<(), Refused> {
        let Some(seat) = self.seat() else {
            self.joined(address);
            return Ok(());
        };
        if seat.add(address) {
            Ok(())
        } else {
            Err(Refused("too many workers join at once: ask again".to_owned()))
        }
    }
}

/// Where a worker is that was lent.
fn address_of(member: &Member) -> Option<Address> {
    match &member.origin {
        Origin::Joined(address) => Some(address.clone()),
        Origin::Local(_) | Origin::Remote(_) => None,
    }
}

/// Whether a member counts for the next line: it is there and trusted, or on its way.
fn may_serve(member: &Member, now: Instant) -> bool {
    let comes = member.conn().is_none() && !member.is_proven();
    let serves = member.conn().is_some() && !member.is_drained() && member.doubts(now) == 0;
    comes || serves
}

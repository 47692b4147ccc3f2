//! The supervisor's part about status for operators: lists each machine under one name, with its state.

use std::time::{Duration, Instant};

use brigade_line::admin::{ClusterStatus, NodeState, NodeStatus, StageBytes, StageStatus};
use brigade_proto::control::HealthReply;

use super::{Line, Supervisor};
use crate::members::departed::Left;
use crate::members::member::Member;
use crate::members::node_memory;
use crate::members::roll;
use crate::reconcile::{Lacking, MemberId};

impl Supervisor {
    pub(super) fn status(&self) -> ClusterStatus {
        let name = |id: &MemberId| self.members.get(id).map(Member::name).unwrap_or_default();
        let (ids, layers): (&[MemberId], &[_]) = match &self.line {
            Line::Up { stages, layers, .. } => (stages.as_slice(), layers.as_slice()),
            Line::Down { .. } | Line::Building { .. } => (&[], &[]),
        };
        let stages = ids.iter().zip(layers);
        let stages = stages
            .map(|(id, layers)| StageStatus { worker: name(id), layers: layers.clone() })
            .collect();
        let roll = roll::roll(&self.members, Some(ids));
        let is_drained = |m: &&Member| m.is_drained() && m.conn().is_some();
        let drained: Vec<String> =
            self.members.values().filter(is_drained).map(Member::name).collect();
        let spare = roll.spare.into_iter().filter(|name| !drained.contains(name)).collect();
        let up = !ids.is_empty();
        ClusterStatus {
            epoch: self.epoch,
            up,
            stages,
            spare,
            drained,
            missing: roll.missing,
            changing: self.next_line.as_ref().map(|coming| coming.what.clone()),
            nodes: self.nodes(),
            waiting: (!up).then(|| self.said.clone()).filter(|said| !said.is_empty()),
            next: (!up).then(|| self.next_step.clone()).flatten(),
        }
    }

    /// All machines: those of the line in its order, the others as they came, then those that left.
    fn nodes(&self) -> Vec<NodeStatus> {
        let now = Instant::now();
        let mut there: Vec<_> = self.members.iter().map(|(id, m)| self.node(*id, m, now)).collect();
        there.sort_by_key(|node| node.stage.unwrap_or(usize::MAX));
        there.extend(self.ends.seat.iter().flat_map(|seat| seat.spares()));
        let is_back = |left: &Left| there.iter().any(|node| is_same(node, left));
        let gone = self.departed.left().filter(|left| !is_back(left));
        let gone: Vec<_> = gone.map(|left| of_left(left, now)).collect();
        there.into_iter().chain(gone).collect()
    }

    fn node(&self, id: MemberId, member: &Member, now: Instant) -> NodeStatus {
        let (stage, layers) = match &self.line {
            Line::Up { stages, layers, .. } => {
                let stage = stages.iter().position(|on| *on == id);
                (stage, stage.and_then(|stage| layers.get(stage).cloned()))
            }
            Line::Down { .. } | Line::Building { .. } => (None, None),
        };
        let known = member.known();
        let beat = member.conn().and_then(|conn| conn.pulse().last());
        let seconds = |at: Instant| now.saturating_duration_since(at).as_secs();
        NodeStatus {
            name: member.name(),
            address: known.map_or_else(|| member.origin.address(), |k| k.address.clone()),
            key: known.and_then(|k| k.key.clone()),
            state: self.state(member, stage.is_some()),
            stage,
            layers,
            heard_ms_ago: beat.as_ref().map(|beat| beat.ago(now).as_millis() as u64),
            lost_seconds_ago: member.lost_at().map(seconds),
            busy_share: beat.as_ref().filter(|_| stage.is_some()).map(|beat| beat.busy),
            memory_used: beat.as_ref().map(|beat| beat.reply().memory_used),
            memory_limit: known.map(|k| k.memory_limit),
            node_memory: member.conn().and_then(node_memory::share_of),
            disk: member.conn().and_then(node_memory::disk_of),
            bytes: beat.as_ref().filter(|_| stage.is_some()).map(|beat| bytes(beat.reply())),
            gb_per_second: known.map(|k| k.gb_per_second),
            gop_per_second: known.map(|k| k.gop_per_second),
            products: known.and_then(|k| k.products),
            slowdown: member.conn().map(|conn| conn.slowdown()),
            device: known.map(|k| k.device.clone()),
            why: match member.why() {
                Some(why) => Some(roll::without_name(member, why)),
                None if stage.is_none() => member.doubted_for(now).map(doubted),
                None => None,
            },
        }
    }

    fn state(&self, member: &Member, on_line: bool) -> NodeState {
        match member.conn() {
            Some(_) if on_line && member.is_drained() => NodeState::Draining,
            Some(_) if on_line => NodeState::Serves,
            Some(_) if member.is_drained() => NodeState::Drained,
            Some(_) if matches!(self.line, Line::Up { .. }) => NodeState::Spare,
            Some(_) => NodeState::Waiting,
            None if member.refuses() => NodeState::Refused,
            None if member.lost_at().is_some() => NodeState::Lost,
            None => NodeState::Missing,
        }
    }

    /// A command with which the operator can provide the lacking memory or workers.
    pub(super) fn step_towards(&self, lacking: &Lacking) -> Option<String> {
        let hint = self.ends.config.how_to_join.as_ref()?;
        // Its reason says what helps: another machine may be as small.
        if self.ends.seat.as_ref().is_some_and(|seat| seat.lacks_disk()) {
            return None;
        }
        let machines = match lacking {
            Lacking::Workers { there, wanted } => wanted.saturating_sub(*there),
            Lacking::Memory { .. } => 1,
            Lacking::Patience(_) => return None,
        };
        Some(hint.for_machines(machines.max(1)))
    }
}

/// Why a worker that is there has no layers.
fn doubted(left: Duration) -> String {
    format!(
        "it broke a line: for {} s more it gets layers only where the others do not suffice, or now by brigade cluster \
         rebalance",
        left.as_secs().max(1)
    )
}

/// Bytes of a stage by memory, from a heartbeat.
fn bytes(health: &HealthReply) -> StageBytes {
    StageBytes {
        weights: health.weight_bytes,
        states: health.state_bytes,
        host_experts: health.host_expert_bytes,
        expert_rows: [health.expert_rows, health.host_expert_rows],
        copied_expert_rows: health.copied_expert_rows,
        expert_bytes_sent: health.expert_bytes_sent,
        expert_wait_us: health.expert_wait_us,
        host_expert_us: health.host_expert_us,
    }
}

fn of_left(left: &Left, now: Instant) -> NodeStatus {
    NodeStatus {
        name: left.name.clone(),
        address: left.address.clone(),
        key: left.key.clone(),
        state: NodeState::Lost,
        lost_seconds_ago: Some(now.saturating_duration_since(left.at).as_secs()),
        why: Some(left.why.clone()),
        ..NodeStatus::default()
    }
}

/// Whether a machine is one that had left: it has the same key or address.
fn is_same(node: &NodeStatus, left: &Left) -> bool {
    (node.key.is_some() && node.key == left.key) || node.address == left.address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_back_by_its_key_or_its_address() {
        let left = |key: Option<&str>| Left {
            name: "attic".to_owned(),
            address: "attic:1".to_owned(),
            key: key.map(str::to_owned),
            at: Instant::now(),
            why: "it is gone".to_owned(),
        };
        let is_back = |address: &str, key: Option<&str>, of: Option<&str>| {
            let (address, key) = (address.to_owned(), key.map(str::to_owned));
            is_same(&NodeStatus { address, key, ..NodeStatus::default() }, &left(of))
        };
        assert!(is_back("attic:1", None, None) && is_back("attic:1", Some("b"), Some("a")));
        assert!(is_back("lab:1", Some("a"), Some("a")));
        assert!(!is_back("lab:1", Some("b"), Some("a")) && !is_back("lab:1", None, None));
    }
}

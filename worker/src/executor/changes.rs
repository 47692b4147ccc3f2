//! Which ubatch changed a slot last, so that a state that is copied in parts is one state. This belongs to one lane.
//!
//! The coordinator may close a slot between two parts, and open it for another sequence. It knows the last ubatch
//! before the first part, since numbers of ubatches are the same on all stages.

use std::collections::BTreeMap;

use brigade_engine::batch::{SeqOp, UBatch};
use brigade_proto::failure::{Failure, FailureKind};

/// A slot's state: it is there as long as no later ubatch of that line has changed the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unchanged {
    /// The epoch of the line.
    pub epoch: u64,
    /// The last ubatch that may have changed it.
    pub ubatch: u64,
}

/// The last change of each slot of a lane.
#[derive(Debug, Default)]
pub struct Changes {
    epoch: u64,
    by_slot: BTreeMap<u32, u64>,
}

impl Changes {
    /// Of a lane whose slots are all free.
    pub fn of_lane(epoch: u64) -> Self {
        Self { epoch, by_slot: BTreeMap::new() }
    }

    /// Notes the slots that a ubatch changes. A copy does not change its source.
    pub fn follow(&mut self, ubatch: &UBatch) {
        let of_ops = ubatch.ops.iter().map(changed);
        for slot in of_ops.chain(ubatch.parts.iter().map(|part| part.slot.0)) {
            self.by_slot.insert(slot, ubatch.id);
        }
    }

    /// The state that a slot has now.
    pub fn now(&self, slot: u32) -> Unchanged {
        let ubatch = self.by_slot.get(&slot).copied().unwrap_or(0);
        Unchanged { epoch: self.epoch, ubatch }
    }

    /// Checks that a slot still has a state.
    ///
    /// # Errors
    /// StaleEpoch: the lane is another line's, or the slot was changed since.
    pub fn check(&self, slot: u32, unchanged: Unchanged) -> Result<(), Failure> {
        let Unchanged { epoch, ubatch } = unchanged;
        let why = if epoch != self.epoch {
            format!("the state in slot {slot} was of epoch {epoch}, which is over")
        } else if let Some(last) = self.by_slot.get(&slot).filter(|last| **last > ubatch) {
            format!("the state in slot {slot} is gone: ubatch {last} changed it")
        } else {
            return Ok(());
        };
        Err(Failure::refusal(FailureKind::StaleEpoch, why))
    }
}

/// The slot whose state or pages an op changes.
fn changed(op: &SeqOp) -> u32 {
    match op {
        SeqOp::Copy { dst: slot, .. }
        | SeqOp::Open { slot, .. }
        | SeqOp::Truncate { slot, .. }
        | SeqOp::Close { slot }
        | SeqOp::Grow { slot, .. }
        | SeqOp::Draw { slot }
        | SeqOp::Draft { slot }
        | SeqOp::Adapt { slot, .. }
        | SeqOp::Name { slot, .. }
        | SeqOp::Checkpoint { slot, .. } => slot.0,
    }
}

#[cfg(test)]
mod tests {
    use brigade_engine::batch::SlotId;

    use super::*;

    fn ubatch(id: u64, ops: Vec<SeqOp>) -> UBatch {
        UBatch { id, ops, ..UBatch::default() }
    }

    fn open(slot: u32) -> SeqOp {
        SeqOp::Open { slot: SlotId(slot), blocks: vec![], sampler: None, request: "a".into() }
    }

    fn copy(src: u32, dst: u32) -> SeqOp {
        let (src, dst, request) = (SlotId(src), SlotId(dst), "b".into());
        SeqOp::Copy { src, dst, len: 1, blocks: vec![], sampler: None, request }
    }

    #[test]
    fn a_slot_has_its_state_until_an_op_of_a_later_ubatch_names_it() {
        let mut changes = Changes::of_lane(3);
        let has = |changes: &Changes, slot, ubatch| {
            changes.check(slot, Unchanged { epoch: 3, ubatch }).is_ok()
        };
        changes.follow(&ubatch(4, vec![open(1), open(2)]));
        assert_eq!(changes.now(1), Unchanged { epoch: 3, ubatch: 4 });
        assert!(has(&changes, 1, 4) && has(&changes, 1, 9) && !has(&changes, 1, 3));
        // Others begin with it: it is as it was.
        changes.follow(&ubatch(5, vec![copy(1, 6)]));
        assert!(has(&changes, 1, 4) && !has(&changes, 6, 4) && has(&changes, 6, 5));
        // It is closed, and its slot is another's at once.
        changes.follow(&ubatch(6, vec![SeqOp::Close { slot: SlotId(1) }, open(1)]));
        assert!(!has(&changes, 1, 5) && has(&changes, 2, 5));
        let planes = None;
        changes.follow(&ubatch(7, vec![SeqOp::Truncate { slot: SlotId(2), len: 64, planes }]));
        assert!(!has(&changes, 2, 6) && has(&changes, 2, 7));
    }

    #[test]
    fn the_state_of_another_line_is_gone() {
        let changes = Changes::of_lane(4);
        assert!(changes.check(1, Unchanged { epoch: 4, ubatch: 9 }).is_ok());
        let why = changes.check(1, Unchanged { epoch: 3, ubatch: 9 }).unwrap_err();
        assert_eq!(why.kind(), FailureKind::StaleEpoch);
    }
}

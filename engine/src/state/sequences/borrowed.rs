//! Copies whose recurrent states are not copied. A sequence that begins as a copy reads its states in the place of the
//! one that it is a copy of, and leaves them in its own behind its first rows. If another sequence writes to that place
//! before, the states are copied after all.

use super::{Applied, Draft, Sequence, StateAction};
use crate::batch::{SeqPart, SlotId};

impl Draft<'_> {
    fn now(&self, slot: SlotId) -> Option<&Sequence> {
        let base = self.base.slots.get(slot.0 as usize)?;
        self.changed.get(&slot).unwrap_or(base).as_ref()
    }

    /// Whether the sequence in `slot`, if there is one, has its states in another one's place.
    pub(super) fn is_borrowed(&self, slot: SlotId) -> bool {
        self.now(slot).is_some_and(|now| self.marks.is_borrowed(now.plane, slot))
    }

    /// Copies the states of a sequence that are in another one's place to its own.
    pub(super) fn bring_home(&mut self, slot: SlotId, applied: &mut Applied) {
        if !self.is_borrowed(slot) {
            return;
        }
        let Ok(sequence) = self.sequence(slot) else { return };
        let (from, len) = (sequence.plane, sequence.len);
        sequence.plane = slot;
        self.marks.set(slot, slot, len);
        applied.actions.push(StateAction::CopySlot { from, to: slot });
    }

    /// Prepares a write to the place `plane`, which holds or will hold the states of `of`. Every other sequence that
    /// borrows this place gets a copy in its own.
    pub(super) fn before_writing(&mut self, plane: SlotId, of: SlotId, applied: &mut Applied) {
        for slot in (0..self.base.slots.len() as u32).map(SlotId).filter(|slot| *slot != of) {
            let reads = self.now(slot).is_some_and(|sequence| sequence.plane == plane);
            if reads && plane != slot {
                self.bring_home(slot, applied);
            }
        }
    }

    /// Before the rows of `parts` are computed, no sequence borrows a place that they write to: parts of a ubatch are
    /// computed beside each other.
    pub(super) fn before_parts(&mut self, parts: &[SeqPart], applied: &mut Applied) {
        for SeqPart { slot, ahead, .. } in parts {
            let planes = ahead.and_then(|ahead| ahead.planes);
            if planes.is_some() {
                // Windows name their places.
                self.bring_home(*slot, applied);
            }
            let Some(sequence) = self.now(*slot) else { continue };
            let own = if self.is_borrowed(*slot) { *slot } else { sequence.plane };
            self.before_writing(planes.map_or(own, |planes| planes.to), *slot, applied);
        }
    }
}

//! Drafts against what is drawn: which parts of a sequence that runs ahead are still of use.

use std::collections::BTreeMap;

use crate::batch::{SeqOp, SlotId};

/// Last drawn tokens of sequences that run ahead.
#[derive(Debug, Default)]
pub(super) struct Drafts(BTreeMap<SlotId, Last>);

#[derive(Clone, Copy, Debug)]
enum Last {
    /// The token that belongs at a position.
    Drawn { pos: u32, token: u32 },
    /// Another token than the one that was drafted: what comes is of no use until the sequence is taken back.
    Refuted,
}

impl Drafts {
    /// Whether a part that begins at `pos` with `first` goes on from what was drawn. If not, no later one does.
    pub(super) fn goes_on(&mut self, slot: SlotId, pos: u32, first: u32) -> bool {
        let goes_on = self.may_go_on(slot, pos, first);
        if !goes_on {
            self.refute(slot);
        }
        goes_on
    }

    /// Whether a part that begins at `pos` with `first` is of use, as far as is known.
    pub(super) fn may_go_on(&self, slot: SlotId, pos: u32, first: u32) -> bool {
        match self.0.get(&slot) {
            Some(Last::Refuted) => false,
            // A part behind rows that are not verified is sure: its sender has had the token.
            Some(Last::Drawn { pos: at, token }) => *at != pos || *token == first,
            None => true,
        }
    }

    /// `token` was drawn for position `pos`.
    pub(super) fn drawn(&mut self, slot: SlotId, pos: u32, token: u32) {
        self.0.insert(slot, Last::Drawn { pos, token });
    }

    /// A draft was wrong, or nothing could be drawn.
    pub(super) fn refute(&mut self, slot: SlotId) {
        self.0.insert(slot, Last::Refuted);
    }

    /// Follows what happens to sequences.
    pub(super) fn follow(&mut self, op: &SeqOp) {
        if let SeqOp::Open { slot, .. }
        | SeqOp::Copy { dst: slot, .. }
        | SeqOp::Truncate { slot, .. }
        | SeqOp::Close { slot } = op
        {
            self.0.remove(slot);
        }
    }

    /// Forgets all sequences.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_of_use_until_a_draft_is_wrong_and_again_once_it_is_taken_back() {
        let (slot, other) = (SlotId(1), SlotId(2));
        let mut drafts = Drafts::default();
        assert!(drafts.goes_on(slot, 7, 70));
        drafts.drawn(slot, 9, 90);
        assert!(drafts.may_go_on(slot, 9, 90) && !drafts.may_go_on(slot, 9, 91));
        assert!(drafts.goes_on(slot, 9, 90) && !drafts.goes_on(slot, 9, 91));
        // It is over with all that comes, also with what would have been right.
        assert!(!drafts.goes_on(slot, 9, 90) && !drafts.goes_on(slot, 10, 5));
        assert!(drafts.goes_on(other, 9, 91));
        drafts.follow(&SeqOp::Truncate { slot: other, len: 3, planes: None });
        assert!(!drafts.goes_on(slot, 9, 90));
        drafts.follow(&SeqOp::Truncate { slot, len: 9, planes: None });
        assert!(drafts.goes_on(slot, 9, 90));
        drafts.refute(slot);
        assert!(!drafts.may_go_on(slot, 9, 90) && drafts.may_go_on(other, 9, 90));
        drafts.follow(&SeqOp::Close { slot });
        assert!(drafts.goes_on(slot, 0, 1));
    }
}

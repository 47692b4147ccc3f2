//! Contents of the planes: which sequence's recurrent state each has. A plane is the place of a slot's recurrent
//! states.

use crate::batch::SlotId;
use crate::error::BatchError;

/// For each plane the sequence whose state it has, and after how many positions.
#[derive(Clone, Debug)]
pub(super) struct Marks(Vec<Option<(SlotId, u32)>>);

impl Marks {
    /// `n_slots` planes that have nothing.
    pub(super) fn new(n_slots: usize) -> Self {
        Self(vec![None; n_slots])
    }

    /// Empties all planes.
    pub(super) fn clear(&mut self) {
        self.0.fill(None);
    }

    /// A plane now has the state of the sequence in `slot` after `len` positions.
    pub(super) fn set(&mut self, plane: SlotId, slot: SlotId, len: u32) {
        if let Some(mark) = self.0.get_mut(plane.0 as usize) {
            *mark = Some((slot, len));
        }
    }

    /// Empties the planes that have a state of the sequence in `slot`.
    pub(super) fn forget(&mut self, slot: SlotId) {
        for mark in &mut self.0 {
            mark.take_if(|(of, _)| *of == slot);
        }
    }

    /// Whether the sequence in `slot`, whose states are in `plane`, has them in another sequence's place: in none of its own,
    /// and in none that is lent to it.
    pub(super) fn is_borrowed(&self, plane: SlotId, slot: SlotId) -> bool {
        let mark = self.0.get(plane.0 as usize).copied().flatten();
        plane != slot && mark.is_none_or(|(of, _)| of != slot)
    }

    /// Refuses a plane that there is not.
    ///
    /// # Errors
    /// [`BatchError::NoSuchSlot`].
    pub(super) fn check_slot(&self, plane: SlotId) -> Result<(), BatchError> {
        match self.0.get(plane.0 as usize) {
            Some(_) => Ok(()),
            None => Err(BatchError::NoSuchSlot { slot: plane, n_slots: self.0.len() }),
        }
    }

    /// Refuses a plane that has not the state of the sequence in `slot` after `len` positions.
    ///
    /// # Errors
    /// [`BatchError::NoSuchSlot`], [`BatchError::OtherState`].
    pub(super) fn check(&self, plane: SlotId, slot: SlotId, len: u32) -> Result<(), BatchError> {
        self.check_slot(plane)?;
        if self.0[plane.0 as usize] == Some((slot, len)) {
            Ok(())
        } else {
            Err(BatchError::OtherState { plane, slot, len })
        }
    }
}

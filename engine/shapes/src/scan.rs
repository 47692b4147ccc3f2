//! Places of recurrent states within their slots.

/// Place of a block's state among a slot's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateAt {
    /// Values of a slot.
    pub per_slot: usize,
    /// The first of the state's.
    pub first: usize,
}

//! Where recurrences keep their states.

/// Where in a slot's values a state lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateAt {
    /// Values of a slot.
    pub per_slot: usize,
    /// The first of the state's.
    pub first: usize,
}

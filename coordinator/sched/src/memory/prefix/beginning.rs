//! What a request in the queue would begin with.

use crate::events::KeptId;

/// What a request would begin with if it had its place now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// The kept state, and that of its companion.
    pub(super) states: [Option<KeptId>; 2],
    /// Rows that it would not compute, those among them that are being read.
    pub rows: u32,
    /// What the trees were like.
    pub(super) changes: u64,
}

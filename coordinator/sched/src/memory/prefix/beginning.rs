//! The known beginning of a waiting request's prompt.

use crate::events::KeptId;

/// The states with which a request would begin if it had its place now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Beginning {
    /// The kept state, and that of its companion.
    pub(super) states: [Option<KeptId>; 2],
    /// Rows that it would not compute, those among them that are being read.
    pub rows: u32,
    /// The trees' counter of changes when this was looked up.
    pub(super) changes: u64,
}

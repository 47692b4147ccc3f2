//! A request's wait for a sequence that computes the beginning which both share.

use crate::events::Micros;
use crate::sequence::SeqNo;

/// A request's wait for a sequence that computes their common beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub reader: SeqNo,
    /// The position up to which it waits.
    pub until: u32,
    /// Position from which the request would have to begin by itself.
    pub begin: u32,
    pub since: Micros,
}

//! A request's wait for a sequence that computes the beginning which both share.

use crate::events::Micros;
use crate::sequence::SeqNo;

/// For whom a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub reader: SeqNo,
    /// Up to which position.
    pub until: u32,
    /// Where it would have to begin by itself.
    pub begin: u32,
    pub since: Micros,
}

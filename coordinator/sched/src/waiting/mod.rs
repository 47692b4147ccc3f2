//! Requests that do not run yet: the queue, and the requests of a lost line.

pub(crate) mod admit;
pub(crate) mod fair;
pub(crate) mod overtake;
pub(crate) mod replay;

//! Requests that do not run yet: which one begins next, and what of a lost line begins again.

pub(crate) mod admit;
pub(crate) mod fair;
pub(crate) mod overtake;
pub(crate) mod replay;

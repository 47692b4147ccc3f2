//! Who asks: which key a request shows, what that may have of what all share, and what is written down of it.

pub(crate) mod access;
pub(crate) mod audit;
pub(crate) mod connections;
pub(crate) mod name;
pub(crate) mod shares;
pub(crate) mod under_way;
pub(crate) mod usage;

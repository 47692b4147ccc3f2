//! Ubatches: composed, tracked until they are back, and read.

pub(crate) mod compose;
pub(crate) mod groups;
pub(crate) mod in_flight;
pub(crate) mod results;
pub(crate) mod sizing;

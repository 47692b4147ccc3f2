//! Builds a line that computes from connected workers: stages are placed, loaded and joined.

pub(crate) mod ahead;
pub(crate) mod build;
pub(crate) mod demands;
pub(crate) mod fits;
pub(crate) mod lane;
pub(crate) mod load;
pub(crate) mod place;
pub(crate) mod remarks;

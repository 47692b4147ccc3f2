//! What ubatches cost.

pub(crate) mod cost;
pub(crate) mod few;
pub(crate) mod pace;
pub(crate) mod timing;

//! Measured times of ubatches, and estimates made of them.

pub(crate) mod cost;
pub(crate) mod few;
pub(crate) mod pace;
pub(crate) mod timing;

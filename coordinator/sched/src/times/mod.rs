//! What ubatches cost.

pub(crate) mod pace;
pub(crate) mod timing;

//! An order to load a stage: what to load, from where, and whether it fits.

pub mod fetch;
pub mod load;
pub mod order;

//! Ops as methods of a device: which operands they take, and where each of them runs.

pub(super) mod chosen_lists;
pub(super) mod elementwise;
pub(super) mod gates;
pub(super) mod greatest;
pub(super) mod index;
pub(super) mod moves;
pub(super) mod norms;
pub(super) mod products;
pub(super) mod run;
pub(super) mod streams;

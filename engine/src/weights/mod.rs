//! Weights of a stage: where their bytes come from, how they are checked, read and packed.

mod loader;
mod packer;
mod reader;
mod source;

pub(crate) use packer::ExpertsPlace;

pub use loader::{AdapterTensors, WeightLoader};
pub use source::{TensorBytes, TensorSource};

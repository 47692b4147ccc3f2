//! Reads the repository's sources as text, for its own rules (`tests/tidy.rs`). Nothing else is linked, so that it builds in
//! seconds.

pub mod contexts;
pub mod devices;
pub mod manifests;
pub mod modules;
pub mod parameters;

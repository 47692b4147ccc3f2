//! Measurements of the line: for operators, for `bench`, and ubatch by ubatch for a trace.

pub mod meter;
pub mod metrics;
pub mod models;
pub mod record;
pub mod trace;

//! Helpers for tests of models in one process, with the engine alone below them: golden models, and lines of stages.

pub mod each;
pub mod golden;
pub mod kinds;
pub mod line;
pub mod places;
pub mod rewrite;

//! Tests of models by name.

pub mod names;
pub mod names_bad;
pub mod names_kept;
pub mod names_lines;
pub mod names_moves;

//! An open line as the driver uses it: frames in, results out, and the states of its sequences.

pub mod link;
pub mod numerics;
pub mod open_line;
pub mod prefix_names;
pub mod stale;
pub mod states;
pub mod wire;

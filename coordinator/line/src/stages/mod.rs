//! The stages of an open line, as the driver has them: what goes in, what comes out, and the states that they hold.

pub mod link;
pub mod numerics;
pub mod open_line;
pub mod prefix_names;
pub mod stale;
pub mod states;
pub mod wire;

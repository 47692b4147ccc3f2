//! Simulates agents that use a server, drawn from a seed. It measures how many tokens of their prompts are computed
//! although a kept prefix could have given them, and computes the lowest possible number.
//!
//! [`trace`] draws their requests, [`bounds`] computes ceilings, [`rules`] tries rules of eviction on a simulated
//! line, and [`replay`] asks real servers, which [`place`] starts and watches.

pub mod bounds;
pub mod place;
pub mod replay;
pub mod rules;
pub mod trace;

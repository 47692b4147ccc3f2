//! Simulated agents that use a server, drawn from a seed: how much of their prompts is computed again, and how little
//! it could be at best.
//!
//! [`trace`] draws their requests, [`bounds`] computes ceilings, [`rules`] tries rules of eviction on a simulated
//! line, and [`replay`] asks real servers, which [`place`] starts and watches.

pub mod bounds;
pub mod place;
pub mod replay;
pub mod rules;
pub mod trace;

//! Speculation: sequences that run ahead of drawn tokens.

pub(crate) mod ahead;
pub(crate) mod ahead_of_draws;
pub(crate) mod chains;
pub(crate) mod drafted;
pub(crate) mod drafting;
pub(crate) mod forecast;
pub(crate) mod windows;

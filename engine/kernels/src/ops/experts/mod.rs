//! Mixtures of experts: the choice of experts for each row, rows of pairs, and all the work of a few rows as one job.

pub(crate) mod job;
pub(crate) mod pairs;
pub(crate) mod routing;

//! Mixtures of experts: the choice of experts for each row, pairs of rows and experts, and their sums.

pub(super) mod pairs;
pub(super) mod routing;
pub(super) mod scatter;

//! The K formats: blocks of 256 values in runs that have scales of their own, and minima in some of them.

pub(super) mod q2_k;
pub(super) mod q3_k;
pub(super) mod q4_k;
pub(super) mod q5_k;
pub(super) mod q6_k;
pub(super) mod scales;

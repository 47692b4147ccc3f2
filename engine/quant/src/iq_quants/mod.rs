//! The IQ formats, whose codes index tables of levels, and their codebooks.

pub(super) mod codebook;
pub(super) mod codebook_fit;
pub(super) mod grids;
pub(super) mod iq1_m;
pub(super) mod iq1_s;
pub(super) mod iq2_s;
pub(super) mod iq2_xs;
pub(super) mod iq2_xxs;
pub(super) mod iq3_s;
pub(super) mod iq3_xxs;
pub(super) mod iq4_nl;
pub(super) mod iq4_xs;

//! What GPUs compute, in plain lanes: no fused step, so that every product is rounded before it is added.

use brigade_kernels::lanes::{Scalar, Unfused};
use brigade_kernels::{Kernels, NUMERICS_UNFUSED};

/// The table.
pub static TABLE: Kernels = Kernels::of::<Unfused<Scalar>>().with_numerics(NUMERICS_UNFUSED);

//! Kernels of the host with the bits of GPUs, in plain lanes: for experts that the host computes beside a GPU. No step is fused:
//! every product is rounded before it is added.

use brigade_kernels::lanes::{Scalar, Unfused};
use brigade_kernels::{Kernels, NUMERICS_UNFUSED};

/// All kernels without fused steps, compiled for plain scalar code.
pub static TABLE: Kernels = Kernels::of::<Unfused<Scalar>>().with_numerics(NUMERICS_UNFUSED);

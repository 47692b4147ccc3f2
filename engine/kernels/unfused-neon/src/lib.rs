//! The table `unfused` on NEON: the lanes of `brigade-kernels-neon` without the fused step.

#![cfg(target_arch = "aarch64")]

use brigade_kernels::lanes::Unfused;
use brigade_kernels::{Kernels, NUMERICS_UNFUSED};
use brigade_kernels_neon::Neon;

/// All kernels without fused steps, compiled for NEON.
pub static TABLE: Kernels = Kernels::of::<Unfused<Neon>>().with_numerics(NUMERICS_UNFUSED);

//! The table `unfused` on AVX2: the lanes of `brigade-kernels-avx2` without the fused step.

#![cfg(target_arch = "x86_64")]

use brigade_kernels::lanes::Unfused;
use brigade_kernels::{Kernels, NUMERICS_UNFUSED};
use brigade_kernels_avx2::Avx2;

/// All kernels without fused steps, compiled for AVX2.
pub static TABLE: Kernels = Kernels::of::<Unfused<Avx2>>().with_numerics(NUMERICS_UNFUSED);

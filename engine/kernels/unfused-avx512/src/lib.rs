//! The table `unfused` on AVX-512: the lanes of `brigade-kernels-avx512` without the fused step.

#![cfg(target_arch = "x86_64")]

use brigade_kernels::lanes::Unfused;
use brigade_kernels::{Kernels, NUMERICS_UNFUSED};
use brigade_kernels_avx512::Avx512;

/// All kernels without fused steps, compiled for AVX-512.
pub static TABLE: Kernels = Kernels::of::<Unfused<Avx512>>().with_numerics(NUMERICS_UNFUSED);

//! The 512-bit table. It needs AVX-512 F, BW, DQ, VL and VNNI.
//!
//! Its lanes are written once, in `lanes.rs`. The crate `brigade-kernels-software` compiles them a second time, over the
//! same operations in software. So a machine without the instructions can test all that is particular to this
//! table: which instructions are used, in which order, and the kernels' paths for wide registers. Only the
//! instructions themselves stay untested, and those of `bf16`.

#![cfg(target_arch = "x86_64")]

use brigade_kernels::Kernels;
use brigade_kernels::lanes::{Cache, LANES, Op, Simd, x86};

/// Parts of `lanes.rs` that depend on the machine: imports, detection, and enabled features.
macro_rules! on {
    (import) => {
        use std::arch::x86_64::*;
    };
    (name) => {
        "avx512"
    };
    (detected) => {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
    };
    (pairs) => {};
    ($enabled:item) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        $enabled
    };
}

pub mod bf16;
mod lanes;
pub use lanes::Avx512;

/// All kernels, compiled for AVX-512.
pub static TABLE: Kernels = Kernels::of::<Avx512>();

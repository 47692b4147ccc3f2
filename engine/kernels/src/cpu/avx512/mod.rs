//! The 512-bit table. It needs AVX-512 F, BW, DQ, VL and VNNI.
//!
//! Its lanes are written once, in `lanes.rs`. Tests compile them a second time, over the same operations in
//! software (`software.rs`). So a machine without the instructions can test all that is particular to this
//! table: which instructions are used, in which order, and the kernels' paths for wide registers. Only the
//! instructions themselves stay untested. The feature `software-tables` does this for whole models in other
//! crates' tests.

use crate::cpu::x86;
use crate::simd::{LANES, Op, Simd};

/// What is between `lanes.rs` and the machine.
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
    ($enabled:item) => {
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
        $enabled
    };
}

mod lanes;
pub use lanes::Avx512;

/// What is between `lanes.rs` and the operations in software.
#[cfg(feature = "software-tables")]
macro_rules! on {
    (import) => {
        use super::software::*;
    };
    (name) => {
        "avx512-software"
    };
    (detected) => {
        true
    };
    ($enabled:item) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        $enabled
    };
}

#[cfg(feature = "software-tables")]
mod software;

#[cfg(feature = "software-tables")]
#[path = "lanes.rs"]
#[allow(clippy::duplicate_mod, reason = "twice over different operations is the point")]
mod by_software;
#[cfg(feature = "software-tables")]
pub(crate) use by_software::Avx512 as SoftwareAvx512;

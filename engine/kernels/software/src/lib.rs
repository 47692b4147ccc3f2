//! The 512-bit lanes over their operations in software, for tests on machines without the instructions; with the feature
//! `table` the whole table, which is slow to compile and to run.

#![cfg(target_arch = "x86_64")]

use brigade_kernels::lanes::{Cache, LANES, Op, Simd, x86};

/// Parts of `lanes.rs` that depend on the machine: here, operations in software.
macro_rules! on {
    (import) => {
        use super::operations::*;
    };
    (name) => {
        "avx512-software"
    };
    (detected) => {
        true
    };
    (pairs) => {};
    ($enabled:item) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        $enabled
    };
}

mod operations;

#[path = "../../avx512/src/lanes.rs"]
mod lanes;

pub use lanes::Avx512;

/// All kernels, compiled for 512-bit operations in software.
#[cfg(feature = "table")]
pub static TABLE: brigade_kernels::Kernels = brigade_kernels::Kernels::of::<Avx512>();

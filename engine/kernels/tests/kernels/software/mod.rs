//! The 512-bit table over its operations in software, for machines without the instructions. The library has it only
//! with the feature `software-tables`, as it takes long to compile.

use brigade_kernels::Kernels;
use brigade_kernels::inner::{LANES, Op, Simd, x86};

/// What is between `lanes.rs` and the operations in software.
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
    ($enabled:item) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        $enabled
    };
}

#[path = "../../../src/cpu/avx512/software.rs"]
mod operations;

#[path = "../../../src/cpu/avx512/lanes.rs"]
mod lanes;

static TABLE: Kernels = Kernels::of::<lanes::Avx512>();

/// The table; `None` where even AVX2 is missing.
pub fn table() -> Option<&'static Kernels> {
    lanes::Avx512::detect().map(|_| &TABLE)
}

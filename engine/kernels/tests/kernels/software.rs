//! The 512-bit table over its operations in software, for machines without the instructions. The library has it only
//! with the feature `software-tables`, as it takes long to compile.

use brigade_kernels::Kernels;
use brigade_kernels::inner::{LANES, Op, Simd, x86};

#[path = "../../src/cpu/avx512/in_software.rs"]
mod in_software;

static TABLE: Kernels = Kernels::of::<in_software::Avx512>();

/// The table; `None` where even AVX2 is missing.
pub fn table() -> Option<&'static Kernels> {
    in_software::Avx512::detect().map(|_| &TABLE)
}

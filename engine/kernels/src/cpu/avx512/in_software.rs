//! The lanes of `lanes.rs` over operations in software. The library has them with the feature `software-tables`, and the
//! kernels' tests always: they take this file in as one of theirs.

use super::{LANES, Op, Simd, x86};

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

#[path = "software.rs"]
mod operations;

#[path = "lanes.rs"]
#[allow(clippy::duplicate_mod, reason = "twice over different operations is the point")]
mod lanes;
pub use lanes::Avx512;

//! The same lanes with AVX-512 BF16: products in pairs of bfloat16 values are one instruction.

use brigade_kernels::Kernels;
use brigade_kernels::lanes::{Cache, LANES, Op, Simd, x86};

/// Parts of `lanes.rs`, as in this crate's root.
macro_rules! on {
    (import) => {
        use std::arch::x86_64::*;
    };
    (name) => {
        "avx512bf16"
    };
    (detected) => {
        is_x86_feature_detected!("avx512bf16") && crate::Avx512::detect().is_some()
    };
    (pairs) => {
        // The types of bfloat16 pairs and of integers are the same registers: any bits are values of either.
        #[inline(always)]
        fn pair(self, first: __m512, second: __m512) -> __m512i {
            isa!({
                let low = _mm512_cvtepu16_epi32(std::mem::transmute::<__m256bh, __m256i>(
                    _mm512_cvtneps_pbh(first),
                ));
                let high = _mm512_cvtepu16_epi32(std::mem::transmute::<__m256bh, __m256i>(
                    _mm512_cvtneps_pbh(second),
                ));
                _mm512_or_si512(low, _mm512_slli_epi32::<16>(high))
            })
        }
        #[inline(always)]
        fn dot_pairs(self, acc: __m512, w: __m512i, x: __m512i) -> __m512 {
            isa!({
                let [w, x] = [w, x].map(|v| std::mem::transmute::<__m512i, __m512bh>(v));
                _mm512_dpbf16_ps(acc, w, x)
            })
        }
    };
    ($enabled:item) => {
        #[target_feature(
            enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c"
        )]
        $enabled
    };
}

#[allow(clippy::duplicate_mod, reason = "the same lanes, with one instruction more")]
#[path = "lanes.rs"]
mod lanes;
pub use lanes::Avx512 as Avx512Bf16;

/// The kernels for AVX-512, with products of many rows in pairs where weights are F16 or BF16.
pub static TABLE: Kernels = Kernels::with_pairs_of::<Avx512Bf16>(&super::TABLE);

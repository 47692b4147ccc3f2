//! Code that the x86 tables share: the ends of reductions, in two 256-bit registers, and prefetching.

use std::arch::x86_64::*;

use crate::ahead::Cache;

/// Sum of sixteen lanes, by the tree of [`Simd::sum`](crate::simd::Simd::sum).
///
/// # Safety
/// The CPU has AVX.
#[inline(always)]
pub unsafe fn sum(low: __m256, high: __m256) -> f32 {
    // SAFETY: AVX is there (the caller's promise).
    unsafe {
        let v = _mm256_add_ps(low, high);
        let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)))
    }
}

/// The greatest of sixteen lanes.
///
/// # Safety
/// The CPU has AVX.
#[inline(always)]
pub unsafe fn max_lane(low: __m256, high: __m256) -> f32 {
    // SAFETY: AVX is there (the caller's promise).
    unsafe {
        let v = _mm256_max_ps(low, high);
        let v = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v = _mm_max_ps(v, _mm_movehl_ps(v, v));
        _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)))
    }
}

/// Asks for the lines of `len` bytes that begin `ahead` of `bytes`, whatever is there, into the first cache.
#[inline(always)]
pub fn prefetch(bytes: &[u8], ahead: usize, len: usize) {
    ask::<_MM_HINT_T0>(bytes, ahead, len);
}

/// The same into the cache that is named.
#[inline(always)]
pub fn prefetch_into(cache: Cache, bytes: &[u8], ahead: usize, len: usize) {
    match cache {
        Cache::First => ask::<_MM_HINT_T0>(bytes, ahead, len),
        Cache::Second => ask::<_MM_HINT_T1>(bytes, ahead, len),
    }
}

#[inline(always)]
fn ask<const HINT: i32>(bytes: &[u8], ahead: usize, len: usize) {
    let start = bytes.as_ptr().wrapping_add(ahead);
    for at in (0..len).step_by(64) {
        // SAFETY: a hint, which every x86-64 CPU takes and no address makes fault.
        unsafe { _mm_prefetch::<HINT>(start.wrapping_add(at).cast()) };
    }
}

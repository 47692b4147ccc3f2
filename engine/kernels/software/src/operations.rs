//! The 512-bit operations that `lanes.rs` uses, computed lane by lane. Each follows the description of its
//! instruction in Intel's intrinsics guide. Operations of 128 and 256 bits are the machine's.
//!
//! # Safety
//! As for the intrinsics: pointers reach as far as is accessed, aligned or not, and the machine has AVX2, FMA
//! and F16C.

#![allow(clippy::missing_safety_doc, reason = "said once above")]

use half::f16;
pub(super) use std::arch::x86_64::{
    __m128i, __m256, __m256i, _CMP_GT_OQ, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128,
    _mm_storeu_si128, _mm256_loadu_si256, _mm256_storeu_si256,
};

/// Sixteen f32 lanes of a 512-bit register.
#[allow(non_camel_case_types, reason = "named as in the instruction set")]
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct __m512([f32; 16]);

/// Sixteen i32 lanes of a 512-bit register.
#[allow(non_camel_case_types, reason = "named as in the instruction set")]
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct __m512i([i32; 16]);

/// An array whose element `i` is `f(i)`: a plain loop, which becomes vectors where `array::from_fn` may not.
#[inline(always)]
fn each<T: Copy + Default, const N: usize>(f: impl Fn(usize) -> T) -> [T; N] {
    let mut out = [T::default(); N];
    for (i, out) in out.iter_mut().enumerate() {
        *out = f(i);
    }
    out
}

/// The same bits as another type of plain lanes.
#[inline(always)]
fn cast<A: Copy, B: Copy>(a: A) -> B {
    assert_eq!(size_of::<A>(), size_of::<B>(), "types of the same size");
    // SAFETY: both are vectors or arrays of numbers of the same size: any bits are a value.
    unsafe { std::mem::transmute_copy(&a) }
}

#[inline(always)]
pub(super) unsafe fn _mm512_loadu_ps(p: *const f32) -> __m512 {
    // SAFETY: sixteen values are there (the caller's promise).
    __m512(unsafe { p.cast::<[f32; 16]>().read_unaligned() })
}

#[inline(always)]
pub(super) unsafe fn _mm512_storeu_ps(p: *mut f32, v: __m512) {
    // SAFETY: sixteen values have room there (the caller's promise).
    unsafe { p.cast::<[f32; 16]>().write_unaligned(v.0) }
}

#[inline(always)]
pub(super) unsafe fn _mm512_loadu_si512(p: *const __m512i) -> __m512i {
    // SAFETY: 64 bytes are there (the caller's promise).
    unsafe { p.read_unaligned() }
}

/// Operations of the instruction set: unsafe as those are, so that callers read the same.
macro_rules! operations {
    ($($name:ident $(<const $c:ident>)? ($($arg:ident: $ty:ty),*) -> $out:ty { $body:expr })*) => {$(
        #[inline(always)]
        pub(super) unsafe fn $name $(<const $c: i32>)? ($($arg: $ty),*) -> $out { $body }
    )*};
}

operations! {
    _mm512_set1_ps(x: f32) -> __m512 { __m512([x; 16]) }
    _mm512_set1_epi32(x: i32) -> __m512i { __m512i([x; 16]) }
    _mm512_castsi512_ps(v: __m512i) -> __m512 { __m512(cast(v.0)) }
    _mm512_castps512_ps256(v: __m512) -> __m256 { cast::<[f32; 8], _>(each(|i| v.0[i])) }
    _mm512_extractf32x8_ps<const HALF>(v: __m512) -> __m256 {
        cast::<[f32; 8], _>(each(|i| v.0[8 * (HALF & 1) as usize + i]))
    }
    _mm512_cvtph_ps(v: __m256i) -> __m512 {
        { let v: [u16; 16] = cast(v); __m512(v.map(|x| f16::from_bits(x).to_f32())) }
    }
    _mm512_cvtps_ph<const ROUNDING>(v: __m512) -> __m256i {
        { assert_eq!(ROUNDING, _MM_FROUND_TO_NEAREST_INT); cast(v.0.map(|x| f16::from_f32(x).to_bits())) }
    }
    _mm512_add_ps(a: __m512, b: __m512) -> __m512 { __m512(each(|i| a.0[i] + b.0[i])) }
    _mm512_sub_ps(a: __m512, b: __m512) -> __m512 { __m512(each(|i| a.0[i] - b.0[i])) }
    _mm512_mul_ps(a: __m512, b: __m512) -> __m512 { __m512(each(|i| a.0[i] * b.0[i])) }
    _mm512_div_ps(a: __m512, b: __m512) -> __m512 { __m512(each(|i| a.0[i] / b.0[i])) }
    _mm512_fmadd_ps(a: __m512, b: __m512, c: __m512) -> __m512 {
        __m512(each(|i| a.0[i].mul_add(b.0[i], c.0[i])))
    }
    _mm512_cmp_ps_mask<const HOW>(a: __m512, b: __m512) -> u16 {
        { assert_eq!(HOW, _CMP_GT_OQ); (0..16).fold(0, |mask, i| mask | u16::from(a.0[i] > b.0[i]) << i) }
    }
    _mm512_mask_blend_ps(mask: u16, a: __m512, b: __m512) -> __m512 {
        __m512(each(|i| if mask >> i & 1 == 1 { b.0[i] } else { a.0[i] }))
    }
    _mm512_permute_ps<const ORDER>(v: __m512) -> __m512 {
        __m512(each(|i| v.0[i / 4 * 4 + (ORDER >> (i % 4 * 2) & 3) as usize]))
    }
    // Results out of range, where the instruction gives the least integer, are not read.
    _mm512_cvtps_epi32(v: __m512) -> __m512i { __m512i(v.0.map(|x| x.round_ties_even() as i32)) }
    _mm512_cvtepi32_ps(v: __m512i) -> __m512 { __m512(v.0.map(|x| x as f32)) }
    _mm512_cvtepu8_epi32(v: __m128i) -> __m512i { { let v: [u8; 16] = cast(v); __m512i(v.map(i32::from)) } }
    _mm512_cvtepi8_epi32(v: __m128i) -> __m512i { { let v: [i8; 16] = cast(v); __m512i(v.map(i32::from)) } }
    _mm512_cvtepu16_epi32(v: __m256i) -> __m512i { { let v: [u16; 16] = cast(v); __m512i(v.map(i32::from)) } }
    _mm512_cvtepi32_epi8(v: __m512i) -> __m128i { cast(v.0.map(|x| x as i8)) }
    _mm512_add_epi32(a: __m512i, b: __m512i) -> __m512i { __m512i(each(|i| a.0[i].wrapping_add(b.0[i]))) }
    _mm512_and_si512(a: __m512i, b: __m512i) -> __m512i { __m512i(each(|i| a.0[i] & b.0[i])) }
    _mm512_or_si512(a: __m512i, b: __m512i) -> __m512i { __m512i(each(|i| a.0[i] | b.0[i])) }
    _mm512_slli_epi32<const N>(v: __m512i) -> __m512i { __m512i(v.0.map(|x| shifted(x, N as u64, u32::checked_shl))) }
    _mm512_sllv_epi32(v: __m512i, n: __m512i) -> __m512i {
        __m512i(each(|i| shifted(v.0[i], n.0[i] as u64, u32::checked_shl)))
    }
    _mm512_srlv_epi32(v: __m512i, n: __m512i) -> __m512i {
        __m512i(each(|i| shifted(v.0[i], n.0[i] as u64, u32::checked_shr)))
    }
    _mm512_broadcast_i32x4(v: __m128i) -> __m512i { { let v: [i32; 4] = cast(v); __m512i(each(|i| v[i % 4])) } }
    _mm512_shuffle_epi8(v: __m512i, order: __m512i) -> __m512i {
        {
            let (v, order): ([u8; 64], [u8; 64]) = (cast(v), cast(order));
            // Within each 16 bytes; a byte of the order with its highest bit set gives zero.
            let pick = |i: usize| v[i / 16 * 16 + usize::from(order[i] % 16)];
            cast::<[u8; 64], _>(each(|i| if order[i] < 128 { pick(i) } else { 0 }))
        }
    }
    _mm512_reduce_add_epi32(v: __m512i) -> i32 { v.0.into_iter().fold(0, i32::wrapping_add) }
    _mm512_dpbusd_epi32(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
        {
            let (a, b): ([u8; 64], [i8; 64]) = (cast(a), cast(b));
            let product = |i: usize| i32::from(a[i]) * i32::from(b[i]);
            __m512i(each(|i| (4 * i..4 * i + 4).fold(sum.0[i], |sum, k| sum.wrapping_add(product(k)))))
        }
    }
}

/// `x` shifted by `n` bits, zero from 32 on.
#[inline(always)]
fn shifted(x: i32, n: u64, shift: impl Fn(u32, u32) -> Option<u32>) -> i32 {
    u32::try_from(n).ok().and_then(|n| shift(x as u32, n)).unwrap_or(0) as i32
}

//! Sixteen lanes in one 512-bit register: the machine's, or the software form that [`on`](super) chooses.

use super::{Cache, LANES, Op, Simd, x86};

on!(import);

/// Proof that this CPU has the instructions of this file.
#[derive(Clone, Copy)]
pub struct Avx512(());

/// An intrinsic of this file's instruction sets.
macro_rules! isa {
    ($call:expr) => {
        // SAFETY: an `Avx512` value exists, so the CPU has the instructions; the pointers, where
        // there are any, come from references to arrays of the width that is accessed, and the
        // unaligned forms are used.
        unsafe { $call }
    };
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;

    const NAME: &'static str = on!(name);
    const TILE: usize = 8;
    const MANY_PANELS: usize = 2;
    const TOGETHER: bool = true;
    const CHAINS: usize = 8;

    fn detect() -> Option<Self> {
        let all = on!(detected)
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        all.then_some(Self(()))
    }
    #[inline(always)]
    fn run<O: Op>(self, op: O) -> O::Out {
        on! {
            fn enabled<O: Op>(s: Avx512, op: O) -> O::Out {
                op.eval(s)
            }
        }
        isa!(enabled(self, op))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        isa!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        isa!(_mm512_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: __m512, out: &mut [f32; LANES]) {
        isa!(_mm512_storeu_ps(out.as_mut_ptr(), v));
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> __m512 {
        isa!(_mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn store_f16(self, v: __m512, out: &mut [u16; LANES]) {
        isa!(_mm256_storeu_si256(
            out.as_mut_ptr().cast(),
            _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)
        ));
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> __m512 {
        isa!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(self.load_u16(x))))
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        isa!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        isa!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        isa!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        isa!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        isa!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn select_gt(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        isa!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b), y, x))
    }
    #[inline(always)]
    fn swap_pairs(self, v: __m512) -> __m512 {
        isa!(_mm512_permute_ps::<0b10_11_00_01>(v))
    }
    #[inline(always)]
    fn round_i32(self, v: __m512) -> __m512i {
        isa!(_mm512_cvtps_epi32(v))
    }
    #[inline(always)]
    fn to_f32(self, v: __m512i) -> __m512 {
        isa!(_mm512_cvtepi32_ps(v))
    }
    #[inline(always)]
    fn bits_f32(self, v: __m512i) -> __m512 {
        isa!(_mm512_castsi512_ps(v))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> __m512i {
        isa!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn splat_bytes(self, x: &[i8; 4]) -> __m512i {
        self.splat_i(bytemuck::cast(*x))
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> __m512i {
        isa!(_mm512_loadu_si512(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn load_u8(self, x: &[u8; LANES]) -> __m512i {
        isa!(_mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; LANES]) -> __m512i {
        isa!(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_u16(self, x: &[u16; LANES]) -> __m512i {
        isa!(_mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn store_low_bytes(self, v: __m512i, out: &mut [i8; LANES]) {
        isa!(_mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(v)));
    }
    #[inline(always)]
    fn add_i(self, a: __m512i, b: __m512i) -> __m512i {
        isa!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn and_i(self, a: __m512i, b: __m512i) -> __m512i {
        isa!(_mm512_and_si512(a, b))
    }
    #[inline(always)]
    fn or_i(self, a: __m512i, b: __m512i) -> __m512i {
        isa!(_mm512_or_si512(a, b))
    }
    #[inline(always)]
    fn shl_i(self, v: __m512i, n: u32) -> __m512i {
        isa!(_mm512_sllv_epi32(v, _mm512_set1_epi32(n as i32)))
    }
    #[inline(always)]
    fn shr_i(self, v: __m512i, n: u32) -> __m512i {
        isa!(_mm512_srlv_epi32(v, _mm512_set1_epi32(n as i32)))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: __m512i) -> __m512i {
        isa!({
            let table = _mm_loadu_si128(table.as_ptr().cast());
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), index)
        })
    }
    #[inline(always)]
    fn sum_i(self, v: __m512i) -> i32 {
        isa!(_mm512_reduce_add_epi32(v))
    }
    #[inline(always)]
    fn dot4(self, acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        isa!(_mm512_dpbusd_epi32(acc, w, x))
    }
    #[inline(always)]
    fn dot4_signed(self, acc: __m512i, w: __m512i, x: __m512i) -> __m512i {
        isa!(_mm512_dpbusd_epi32(acc, w, x))
    }
    on!(pairs);
    #[inline(always)]
    fn signed_start(self, neg_sum: i32) -> __m512i {
        self.shl_i(self.splat_i(neg_sum), 7)
    }
    #[inline(always)]
    fn prefetch(self, bytes: &[u8], ahead: usize, len: usize) {
        x86::prefetch(bytes, ahead, len);
    }
    #[inline(always)]
    fn prefetch_into(self, cache: Cache, bytes: &[u8], ahead: usize, len: usize) {
        x86::prefetch_into(cache, bytes, ahead, len);
    }
    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        isa!(x86::sum(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
    }
    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        isa!(x86::max_lane(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)))
    }
}

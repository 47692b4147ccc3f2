//! The table of AVX2: lanes in two 256-bit registers. It needs AVX2, FMA and F16C. Its lanes are also those of AVX-VNNI,
//! which has the four-byte dot product as one instruction: `brigade-kernels-avxvnni` is the table.
//!
//! The four-byte dot product goes through 16-bit pair sums, which saturate. They stay exact, because one factor is at
//! most 128 and the other at most 127 (2 * 128 * 127 < 2^15). Several products of narrow codes are added up before
//! they are widened. Weights that fill the byte are taken as magnitude and sign, and the sign moves to the
//! activations.

#![cfg(target_arch = "x86_64")]

use std::arch::asm;
use std::arch::x86_64::*;

use brigade_kernels::Kernels;
use brigade_kernels::lanes::{Cache, LANES, Op, Simd, chained, x86};

/// All kernels, compiled for AVX2 and FMA.
pub static TABLE: Kernels = Kernels::of::<Avx2>();

/// Lanes of AVX2 alone.
pub type Avx2 = Lanes<false>;

/// Lanes of AVX2 with the products of AVX-VNNI.
pub type AvxVnni = Lanes<true>;

/// Proof that this CPU has AVX2, FMA and F16C, and with `VNNI` AVX-VNNI.
#[derive(Clone, Copy)]
pub struct Lanes<const VNNI: bool>(());

/// Two registers as one vector of sixteen lanes.
#[derive(Clone, Copy)]
pub struct Two<T>(T, T);

/// An intrinsic of this file's instruction sets.
macro_rules! isa {
    ($call:expr) => {
        // SAFETY: a `Lanes` value exists, so the CPU has the instructions; the pointers, where there
        // are any, come from references to arrays that reach as far as is accessed, and the
        // unaligned forms are used.
        unsafe { $call }
    };
}

/// Fewest vectors that are worth adding up before they are widened.
const MIN_GROUP: usize = 2;

/// Rows of a tile from which on widened sums are pinned, vector by vector; the compiler orders fewer of
/// them better by itself.
const PINNED_ROWS: usize = 3;

type F = Two<__m256>;
type I = Two<__m256i>;

/// Applies an intrinsic to both registers of each operand.
macro_rules! both {
    ($f:path; $($arg:expr),+) => { isa!(Two($f($($arg.0),+), $f($($arg.1),+))) };
}

/// Writes the body out once for each `v < n`, at most eight times. The compiler leaves such loops rolled up, which
/// costs a bounds check and a jump for every few products. The body should be short: it is compiled eight times.
macro_rules! unrolled {
    ($v:ident < $n:expr => $body:block) => {
        unrolled!(@ $v $n, $body, 0 1 2 3 4 5 6 7)
    };
    (@ $v:ident $n:expr, $body:block, $($i:literal)+) => {
        $({
            let $v: usize = $i;
            if $v < $n $body
        })+
    };
}

/// The same value, computed by this point and kept in registers: what stands before and after in the
/// source is not mixed. The compiler would otherwise keep unpacked weights in memory, row by row.
#[target_feature(enable = "avx2")]
#[inline]
fn pinned(mut v: I) -> I {
    // SAFETY: an empty instruction sequence that touches nothing but names both registers.
    unsafe {
        asm!("/* {} {} */", inout(ymm_reg) v.0, inout(ymm_reg) v.1,
            options(nomem, nostack, preserves_flags));
    }
    v
}

/// The same value, in a vector register by this point. The compiler would otherwise shift what was read as a scalar, and move
/// it there in two more instructions.
#[target_feature(enable = "avx2")]
#[inline]
fn in_vector(mut v: __m256i) -> __m256i {
    // SAFETY: an empty instruction sequence that touches nothing but names the register.
    unsafe {
        asm!("/* {} */", inout(ymm_reg) v, options(pure, nomem, nostack, preserves_flags));
    }
    v
}

impl<const VNNI: bool> Lanes<VNNI> {
    /// Adds the products of vector `v` of `w` to the sums of `T` rows: codes too wide for 16-bit sums of several vectors.
    #[inline(always)]
    fn add_dots<const T: usize, const N: usize>(
        self,
        mut acc: [I; T],
        w: I,
        x: &[&[[i8; 4]; N]; T],
        v: usize,
    ) -> [I; T] {
        for t in 0..T {
            acc[t] = self.dot4(acc[t], w, self.splat_bytes(&x[t][v]));
            if T >= PINNED_ROWS {
                acc[t] = isa!(pinned(acc[t]));
            }
        }
        acc
    }

    /// Adds the 16-bit pair sums of vector `v` of `w` to those of the vectors before it, or begins with them.
    #[inline(always)]
    fn add_pairs<const T: usize, const N: usize>(
        self,
        mut pairs: [I; T],
        w: I,
        x: &[&[[i8; 4]; N]; T],
        v: usize,
        begins: bool,
    ) -> [I; T] {
        for t in 0..T {
            let x = self.splat_bytes(&x[t][v]);
            let product = both!(_mm256_maddubs_epi16; w, x);
            let sum = if begins { product } else { both!(_mm256_add_epi16; pairs[t], product) };
            pairs[t] = isa!(pinned(sum));
        }
        pairs
    }

    /// Adds 16-bit pair sums to the rows' sums.
    #[inline(always)]
    fn add_widened<const T: usize>(self, mut acc: [I; T], pairs: [I; T], one: I) -> [I; T] {
        for t in 0..T {
            acc[t] = self.add_i(acc[t], both!(_mm256_madd_epi16; pairs[t], one));
        }
        acc
    }

    /// As [`Lanes::add_dots`], for weights that use all eight bits.
    #[inline(always)]
    fn add_signed<const T: usize, const N: usize>(
        self,
        mut acc: [I; T],
        w: I,
        x: &[&[[i8; 4]; N]; T],
        v: usize,
    ) -> [I; T] {
        let high = self.both_halves(isa!(_mm256_set1_epi8(-128)));
        let w = both!(_mm256_xor_si256; w, high);
        let size = both!(_mm256_abs_epi8; w);
        for t in 0..T {
            let x = self.splat_bytes(&x[t][v]);
            let x = both!(_mm256_sign_epi8; x, w);
            acc[t] = self.dot4(acc[t], size, x);
            if T >= PINNED_ROWS {
                acc[t] = isa!(pinned(acc[t]));
            }
        }
        acc
    }

    /// The same register twice.
    #[inline(always)]
    fn both_halves(self, v: __m256i) -> I {
        Two(v, v)
    }

    /// `acc` plus the 16-bit pair sums of unsigned `w` and signed `x`, four bytes to a lane.
    #[inline(always)]
    fn dot(self, acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        if const { VNNI } {
            return isa!(_mm256_dpbusd_avx_epi32(acc, w, x));
        }
        isa!({
            let pairs = _mm256_maddubs_epi16(w, x);
            _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
        })
    }

    /// As [`Lanes::dot`], for weights stored with 128 added.
    #[inline(always)]
    fn dot_signed(self, acc: __m256i, w: __m256i, x: __m256i) -> __m256i {
        if const { VNNI } {
            return self.dot(acc, w, x);
        }
        let w = isa!(_mm256_xor_si256(w, _mm256_set1_epi8(-128)));
        self.dot(acc, isa!(_mm256_abs_epi8(w)), isa!(_mm256_sign_epi8(x, w)))
    }
}

impl<const VNNI: bool> Simd for Lanes<VNNI> {
    type F = F;
    type I = I;

    const NAME: &'static str = if VNNI { "avxvnni" } else { "avx2" };
    const TILE: usize = 4;
    const MANY_TILE: usize = 6;
    const TILES_A_BLOCK: usize = if VNNI { 1 } else { 2 };
    const TOGETHER: bool = true;
    const CHAINS: usize = if VNNI { 4 } else { 1 };
    const INTEGERS_FIRST: bool = true;

    fn detect() -> Option<Self> {
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && (!VNNI || is_x86_feature_detected!("avxvnni"));
        all.then_some(Self(()))
    }
    #[inline(always)]
    fn run<O: Op>(self, op: O) -> O::Out {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn enabled<O: Op>(s: Avx2, op: O) -> O::Out {
            op.eval(s)
        }
        #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
        fn enabled_vnni<O: Op>(s: AvxVnni, op: O) -> O::Out {
            op.eval(s)
        }
        if const { VNNI } {
            isa!(enabled_vnni(Lanes(()), op))
        } else {
            isa!(enabled(Lanes(()), op))
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        let v = isa!(_mm256_set1_ps(x));
        Two(v, v)
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> F {
        let p = x.as_ptr();
        isa!(Two(_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))))
    }
    #[inline(always)]
    fn store(self, v: F, out: &mut [f32; LANES]) {
        let p = out.as_mut_ptr();
        isa!({
            _mm256_storeu_ps(p, v.0);
            _mm256_storeu_ps(p.add(8), v.1);
        });
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> F {
        let p: *const __m128i = x.as_ptr().cast();
        isa!(Two(_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))))
    }
    #[inline(always)]
    fn store_f16(self, v: F, out: &mut [u16; LANES]) {
        let p: *mut __m128i = out.as_mut_ptr().cast();
        isa!({
            _mm_storeu_si128(p, _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.0));
            _mm_storeu_si128(p.add(1), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v.1));
        });
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> F {
        self.bits_f32(self.shl_i(self.load_u16(x), 16))
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        both!(_mm256_add_ps; a, b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        both!(_mm256_sub_ps; a, b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        both!(_mm256_mul_ps; a, b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        both!(_mm256_div_ps; a, b)
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        both!(_mm256_fmadd_ps; a, b, c)
    }
    #[inline(always)]
    fn select_gt(self, a: F, b: F, x: F, y: F) -> F {
        let greater = both!(_mm256_cmp_ps::<_CMP_GT_OQ>; a, b);
        both!(_mm256_blendv_ps; y, x, greater)
    }
    #[inline(always)]
    fn swap_pairs(self, v: F) -> F {
        both!(_mm256_permute_ps::<0b10_11_00_01>; v)
    }
    #[inline(always)]
    fn round_i32(self, v: F) -> I {
        both!(_mm256_cvtps_epi32; v)
    }
    #[inline(always)]
    fn to_f32(self, v: I) -> F {
        both!(_mm256_cvtepi32_ps; v)
    }
    #[inline(always)]
    fn bits_f32(self, v: I) -> F {
        both!(_mm256_castsi256_ps; v)
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        let v = isa!(_mm256_set1_epi32(x));
        Two(v, v)
    }
    #[inline(always)]
    fn splat_bytes(self, x: &[i8; 4]) -> I {
        self.splat_i(bytemuck::cast(*x))
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> I {
        let p: *const __m256i = x.as_ptr().cast();
        isa!(Two(_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))))
    }
    #[inline(always)]
    fn load_u8(self, x: &[u8; LANES]) -> I {
        let v = isa!(_mm_loadu_si128(x.as_ptr().cast()));
        isa!(Two(_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(_mm_srli_si128::<8>(v))))
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; LANES]) -> I {
        let v = isa!(_mm_loadu_si128(x.as_ptr().cast()));
        isa!(Two(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(v))))
    }
    #[inline(always)]
    fn load_u16(self, x: &[u16; LANES]) -> I {
        let p: *const __m128i = x.as_ptr().cast();
        isa!(Two(
            _mm256_cvtepu16_epi32(_mm_loadu_si128(p)),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(1)))
        ))
    }
    #[inline(always)]
    fn store_low_bytes(self, v: I, out: &mut [i8; LANES]) {
        isa!({
            let low = _mm256_set1_epi32(0xff);
            let words = _mm256_packus_epi32(_mm256_and_si256(v.0, low), _mm256_and_si256(v.1, low));
            // Quarters of four lanes: 0 2 1 3, each twice after the second packing.
            let bytes = _mm256_packus_epi16(words, words);
            let order = _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5);
            let bytes = _mm256_permutevar8x32_epi32(bytes, order);
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm256_castsi256_si128(bytes));
        });
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        both!(_mm256_add_epi32; a, b)
    }
    #[inline(always)]
    fn and_i(self, a: I, b: I) -> I {
        both!(_mm256_and_si256; a, b)
    }
    #[inline(always)]
    fn or_i(self, a: I, b: I) -> I {
        both!(_mm256_or_si256; a, b)
    }
    #[inline(always)]
    fn shl_i(self, v: I, n: u32) -> I {
        let n = isa!(_mm_cvtsi32_si128(n as i32));
        isa!(Two(_mm256_sll_epi32(v.0, n), _mm256_sll_epi32(v.1, n)))
    }
    #[inline(always)]
    fn shr_i(self, v: I, n: u32) -> I {
        let n = isa!(_mm_cvtsi32_si128(n as i32));
        isa!(Two(_mm256_srl_epi32(v.0, n), _mm256_srl_epi32(v.1, n)))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: I) -> I {
        let table = isa!(_mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast())));
        isa!(Two(_mm256_shuffle_epi8(table, index.0), _mm256_shuffle_epi8(table, index.1)))
    }
    #[inline(always)]
    fn sum_i(self, v: I) -> i32 {
        isa!({
            let v = _mm256_add_epi32(v.0, v.1);
            let v = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b01_00_11_10>(v));
            let v = _mm_add_epi32(v, _mm_shuffle_epi32::<0b10_11_00_01>(v));
            _mm_cvtsi128_si32(v)
        })
    }
    #[inline(always)]
    fn dot4(self, acc: I, w: I, x: I) -> I {
        Two(self.dot(acc.0, w.0, x.0), self.dot(acc.1, w.1, x.1))
    }
    #[inline(always)]
    fn dot4_signed(self, acc: I, w: I, x: I) -> I {
        Two(self.dot_signed(acc.0, w.0, x.0), self.dot_signed(acc.1, w.1, x.1))
    }
    #[inline(always)]
    fn dots<const T: usize, const N: usize>(
        self,
        mut acc: [I; T],
        w: &[I; N],
        max: u8,
        x: &[&[[i8; 4]; N]; T],
    ) -> [I; T] {
        if const { VNNI } {
            return chained(self, acc, w, x, Self::dot4);
        }
        // Vectors whose 16-bit pair sums may be added up before they are widened.
        let group = i16::MAX as usize / (2 * 127 * usize::from(max));
        if group < MIN_GROUP {
            unrolled!(v < N => { acc = self.add_dots(acc, w[v], x, v) });
            return acc;
        }
        let one = self.both_halves(isa!(_mm256_set1_epi16(1)));
        let mut pairs = [self.splat_i(0); T];
        unrolled!(v < N => {
            pairs = self.add_pairs(pairs, w[v], x, v, v.is_multiple_of(group));
            if v % group == group - 1 || v == N - 1 {
                acc = self.add_widened(acc, pairs, one);
            }
        });
        acc
    }
    #[inline(always)]
    fn dots_signed<const T: usize, const N: usize>(
        self,
        mut acc: [I; T],
        w: &[I; N],
        x: &[&[[i8; 4]; N]; T],
    ) -> [I; T] {
        if const { VNNI } {
            return chained(self, acc, w, x, Self::dot4_signed);
        }
        unrolled!(v < N => { acc = self.add_signed(acc, w[v], x, v) });
        acc
    }
    #[inline(always)]
    fn shifted_start(self, neg_sum: i32, n: u32) -> I {
        let v = isa!(in_vector(_mm256_set1_epi32(neg_sum)));
        self.shl_i(self.both_halves(v), n)
    }
    #[inline(always)]
    fn signed_start(self, neg_sum: i32) -> I {
        if const { VNNI } { self.shl_i(self.splat_i(neg_sum), 7) } else { self.splat_i(0) }
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
    fn sum(self, v: F) -> f32 {
        isa!(x86::sum(v.0, v.1))
    }
    #[inline(always)]
    fn max_lane(self, v: F) -> f32 {
        isa!(x86::max_lane(v.0, v.1))
    }
}

//! The table of NEON: lanes in four 128-bit registers. It needs NEON with half-precision conversion, which every 64-bit Arm CPU
//! has. The four-byte dot product uses the `dotprod` extension where the CPU has it.

#![cfg(target_arch = "aarch64")]

use std::arch::aarch64::*;
use std::arch::asm;

use brigade_kernels::Kernels;
use brigade_kernels::lanes::{LANES, Op, Simd};

/// All kernels, compiled for NEON.
pub static TABLE: Kernels = Kernels::of::<Neon>();

/// Proof that this CPU has the instructions of this file.
#[derive(Clone, Copy)]
pub struct Neon(());

/// Four registers as one vector of sixteen lanes.
type F = [float32x4_t; 4];
type I = [int32x4_t; 4];

/// An intrinsic of this file's instruction sets.
macro_rules! isa {
    ($call:expr) => {
        // SAFETY: a `Neon` value exists, so the CPU has the instructions; the pointers, where there
        // are any, come from references to arrays that reach as far as is accessed.
        unsafe { $call }
    };
}

/// Applies an expression to the registers `i` of its operands.
macro_rules! each {
    ($i:ident => $value:expr) => {
        std::array::from_fn(
            #[inline(always)]
            |$i| isa!($value),
        )
    };
}

impl Neon {
    /// Four-byte dot products of signed bytes onto `acc`, in one instruction.
    #[inline(always)]
    fn sdot(self, acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        let mut out = acc;
        // SAFETY: `detect` found the dotprod extension; the instruction touches only its registers.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {out:v}.4s, {w:v}.16b, {x:v}.16b",
                out = inout(vreg) out,
                w = in(vreg) w,
                x = in(vreg) x,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        out
    }
}

impl Simd for Neon {
    type F = F;
    type I = I;

    const NAME: &'static str = "neon";
    const TILE: usize = 4;

    fn detect() -> Option<Self> {
        let all = std::arch::is_aarch64_feature_detected!("neon")
            && std::arch::is_aarch64_feature_detected!("dotprod");
        all.then_some(Self(()))
    }
    #[inline(always)]
    fn run<O: Op>(self, op: O) -> O::Out {
        #[target_feature(enable = "neon")]
        fn enabled<O: Op>(s: Neon, op: O) -> O::Out {
            op.eval(s)
        }
        isa!(enabled(self, op))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [isa!(vdupq_n_f32(x)); 4]
    }
    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> F {
        each!(i => vld1q_f32(x.as_ptr().add(4 * i)))
    }
    #[inline(always)]
    fn store(self, v: F, out: &mut [f32; LANES]) {
        for (v, out) in v.iter().zip(out.as_chunks_mut::<4>().0) {
            isa!(vst1q_f32(out.as_mut_ptr(), *v));
        }
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> F {
        each!(i => {
            let half = vld1_u16(x.as_ptr().add(4 * i));
            let out: float32x4_t;
            asm!("fcvtl {out:v}.4s, {half:v}.4h", out = out(vreg) out, half = in(vreg) half,
                options(pure, nomem, nostack, preserves_flags));
            out
        })
    }
    #[inline(always)]
    fn store_f16(self, v: F, out: &mut [u16; LANES]) {
        for (v, out) in v.iter().zip(out.as_chunks_mut::<4>().0) {
            isa!({
                let half: uint16x4_t;
                asm!("fcvtn {half:v}.4h, {v:v}.4s", half = out(vreg) half, v = in(vreg) *v,
                    options(pure, nomem, nostack, preserves_flags));
                vst1_u16(out.as_mut_ptr(), half);
            });
        }
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> F {
        self.bits_f32(self.shl_i(self.load_u16(x), 16))
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        each!(i => vaddq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        each!(i => vsubq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        each!(i => vmulq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        each!(i => vdivq_f32(a[i], b[i]))
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        each!(i => vfmaq_f32(c[i], a[i], b[i]))
    }
    #[inline(always)]
    fn select_gt(self, a: F, b: F, x: F, y: F) -> F {
        each!(i => vbslq_f32(vcgtq_f32(a[i], b[i]), x[i], y[i]))
    }
    #[inline(always)]
    fn swap_pairs(self, v: F) -> F {
        each!(i => vrev64q_f32(v[i]))
    }
    #[inline(always)]
    fn round_i32(self, v: F) -> I {
        each!(i => vcvtnq_s32_f32(v[i]))
    }
    #[inline(always)]
    fn to_f32(self, v: I) -> F {
        each!(i => vcvtq_f32_s32(v[i]))
    }
    #[inline(always)]
    fn bits_f32(self, v: I) -> F {
        each!(i => vreinterpretq_f32_s32(v[i]))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        [isa!(vdupq_n_s32(x)); 4]
    }
    #[inline(always)]
    fn splat_bytes(self, x: &[i8; 4]) -> I {
        self.splat_i(bytemuck::cast(*x))
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> I {
        each!(i => vreinterpretq_s32_u8(vld1q_u8(x.as_ptr().add(16 * i))))
    }
    #[inline(always)]
    fn load_u8(self, x: &[u8; LANES]) -> I {
        let v = isa!(vld1q_u8(x.as_ptr()));
        let halves = isa!([vmovl_u8(vget_low_u8(v)), vmovl_high_u8(v)]);
        let lanes: [uint32x4_t; 4] = isa!([
            vmovl_u16(vget_low_u16(halves[0])),
            vmovl_high_u16(halves[0]),
            vmovl_u16(vget_low_u16(halves[1])),
            vmovl_high_u16(halves[1]),
        ]);
        each!(i => vreinterpretq_s32_u32(lanes[i]))
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; LANES]) -> I {
        let v = isa!(vreinterpretq_s8_u8(vld1q_u8(x.as_ptr())));
        let halves = isa!([vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v)]);
        isa!([
            vmovl_s16(vget_low_s16(halves[0])),
            vmovl_high_s16(halves[0]),
            vmovl_s16(vget_low_s16(halves[1])),
            vmovl_high_s16(halves[1]),
        ])
    }
    #[inline(always)]
    fn load_u16(self, x: &[u16; LANES]) -> I {
        each!(i => vreinterpretq_s32_u32(vmovl_u16(vld1_u16(x.as_ptr().add(4 * i)))))
    }
    #[inline(always)]
    fn store_low_bytes(self, v: I, out: &mut [i8; LANES]) {
        for (v, out) in v.iter().zip(out.as_chunks_mut::<4>().0) {
            let mut lanes = [0i32; 4];
            isa!(vst1q_s32(lanes.as_mut_ptr(), *v));
            *out = lanes.map(|x| x as i8);
        }
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        each!(i => vaddq_s32(a[i], b[i]))
    }
    #[inline(always)]
    fn and_i(self, a: I, b: I) -> I {
        each!(i => vandq_s32(a[i], b[i]))
    }
    #[inline(always)]
    fn or_i(self, a: I, b: I) -> I {
        each!(i => vorrq_s32(a[i], b[i]))
    }
    #[inline(always)]
    fn shl_i(self, v: I, n: u32) -> I {
        let n = isa!(vdupq_n_s32(n as i32));
        each!(i => vshlq_s32(v[i], n))
    }
    #[inline(always)]
    fn shr_i(self, v: I, n: u32) -> I {
        let n = isa!(vdupq_n_s32(-(n as i32)));
        each!(i => vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(v[i]), n)))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: I) -> I {
        let table = isa!(vld1q_u8(table.as_ptr()));
        each!(i => vreinterpretq_s32_u8(vqtbl1q_u8(table, vreinterpretq_u8_s32(index[i]))))
    }
    #[inline(always)]
    fn sum_i(self, v: I) -> i32 {
        isa!(vaddvq_s32(vaddq_s32(vaddq_s32(v[0], v[1]), vaddq_s32(v[2], v[3]))))
    }
    #[inline(always)]
    fn dot4(self, acc: I, w: I, x: I) -> I {
        // Weights of at most 127 are the same as signed bytes.
        each!(i => self.sdot(acc[i], vreinterpretq_s8_s32(w[i]), vreinterpretq_s8_s32(x[i])))
    }
    #[inline(always)]
    fn dot4_signed(self, acc: I, w: I, x: I) -> I {
        let sign = isa!(vdupq_n_s8(-128));
        each!(i => {
            let w = veorq_s8(vreinterpretq_s8_s32(w[i]), sign);
            self.sdot(acc[i], w, vreinterpretq_s8_s32(x[i]))
        })
    }
    #[inline(always)]
    fn signed_start(self, _neg_sum: i32) -> I {
        self.splat_i(0)
    }
}

//! Sixteen lanes as plain arrays. This is the table that runs everywhere, and it gives the meaning of every
//! operation of [`Simd`] in ordinary Rust.

use half::{bf16, f16};

use crate::simd::{LANES, Op, Simd};

/// Lanes as arrays; no instruction set is asked for.
#[derive(Clone, Copy)]
pub struct Scalar;

type F = [f32; LANES];
type I = [i32; LANES];

/// An array whose element `i` is `f(i)`: a plain loop, which takes a fraction of the code that `array::from_fn` does.
#[inline(always)]
fn each<R: Copy>(f: impl Fn(usize) -> R) -> [R; LANES] {
    let mut out = [f(0); LANES];
    let mut i = 1;
    while i < LANES {
        out[i] = f(i);
        i += 1;
    }
    out
}

#[inline(always)]
fn map2<T: Copy, R: Copy>(a: [T; LANES], b: [T; LANES], f: impl Fn(T, T) -> R) -> [R; LANES] {
    each(|i| f(a[i], b[i]))
}

impl Simd for Scalar {
    type F = F;
    type I = I;

    const NAME: &'static str = "reference";
    const TILE: usize = 1;

    fn detect() -> Option<Self> {
        Some(Self)
    }
    #[inline(always)]
    fn run<O: Op>(self, op: O) -> O::Out {
        op.eval(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, x: &F) -> F {
        *x
    }
    #[inline(always)]
    fn store(self, v: F, out: &mut F) {
        *out = v;
    }
    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> F {
        each(|i| f16::from_bits(x[i]).to_f32())
    }
    #[inline(always)]
    fn store_f16(self, v: F, out: &mut [u16; LANES]) {
        *out = each(|i| f16::from_f32(v[i]).to_bits());
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u16; LANES]) -> F {
        each(|i| bf16::from_bits(x[i]).to_f32())
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        map2(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        each(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn select_gt(self, a: F, b: F, x: F, y: F) -> F {
        each(|i| if a[i] > b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn swap_pairs(self, v: F) -> F {
        each(|i| v[i ^ 1])
    }
    #[inline(always)]
    fn round_i32(self, v: F) -> I {
        each(|i| v[i].round_ties_even() as i32)
    }
    #[inline(always)]
    fn to_f32(self, v: I) -> F {
        each(|i| v[i] as f32)
    }
    #[inline(always)]
    fn bits_f32(self, v: I) -> F {
        each(|i| f32::from_bits(v[i] as u32))
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        [x; LANES]
    }
    #[inline(always)]
    fn splat_bytes(self, x: &[i8; 4]) -> I {
        [i32::from_le_bytes(x.map(|b| b as u8)); LANES]
    }
    #[inline(always)]
    fn load_bytes(self, x: &[u8; 64]) -> I {
        each(|i| i32::from_le_bytes([x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]]))
    }
    #[inline(always)]
    fn load_u8(self, x: &[u8; LANES]) -> I {
        each(|i| i32::from(x[i]))
    }
    #[inline(always)]
    fn load_i8(self, x: &[u8; LANES]) -> I {
        each(|i| i32::from(x[i] as i8))
    }
    #[inline(always)]
    fn load_u16(self, x: &[u16; LANES]) -> I {
        each(|i| i32::from(x[i]))
    }
    #[inline(always)]
    fn store_low_bytes(self, v: I, out: &mut [i8; LANES]) {
        *out = each(|i| v[i] as i8);
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        map2(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn and_i(self, a: I, b: I) -> I {
        map2(a, b, |a, b| a & b)
    }
    #[inline(always)]
    fn or_i(self, a: I, b: I) -> I {
        map2(a, b, |a, b| a | b)
    }
    #[inline(always)]
    fn shl_i(self, v: I, n: u32) -> I {
        each(|i| v[i] << n)
    }
    #[inline(always)]
    fn shr_i(self, v: I, n: u32) -> I {
        each(|i| (v[i] as u32 >> n) as i32)
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], index: I) -> I {
        each(|i| i32::from_le_bytes(index[i].to_le_bytes().map(|b| table[usize::from(b & 15)])))
    }
    #[inline(always)]
    fn sum_i(self, v: I) -> i32 {
        v.iter().fold(0, |a, &b| a.wrapping_add(b))
    }
    #[inline(always)]
    fn dot4(self, acc: I, w: I, x: I) -> I {
        dot(acc, w, x, i32::from)
    }
    #[inline(always)]
    fn dot4_signed(self, acc: I, w: I, x: I) -> I {
        dot(acc, w, x, |w| i32::from(w) - 128)
    }
    #[inline(always)]
    fn signed_start(self, _neg_sum: i32) -> I {
        [0; LANES]
    }
}

/// `acc + Σ weight(w)·x` over each lane's four bytes.
#[inline(always)]
fn dot(acc: I, w: I, x: I, weight: impl Fn(u8) -> i32) -> I {
    each(|i| {
        let (w, x) = (w[i].to_le_bytes(), x[i].to_le_bytes());
        let products = (0..4).map(|j| weight(w[j]).wrapping_mul(i32::from(x[j] as i8)));
        products.fold(acc[i], i32::wrapping_add)
    })
}

//! Lanes without the fused step: `a * b + c` is rounded twice. These are the numerics of GPUs, of which few promise to round
//! once. So the same kernels state what a GPU has to compute, bit for bit, and CPU workers can compute it too.

use crate::simd::{Cache, LANES, Op, Simd};

/// The lanes of `S` with [`Simd::fma`] as two steps.
#[derive(Clone, Copy)]
pub struct Unfused<S>(S);

/// An op that runs over [`Unfused`] lanes wherever it is run.
struct Within<O>(O);

impl<O: Op> Op for Within<O> {
    type Out = O::Out;
    #[inline(always)]
    fn eval<S: Simd>(self, s: S) -> O::Out {
        self.0.eval(Unfused(s))
    }
}

/// Operations that are those of the lanes within.
macro_rules! as_within {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) $(-> $out:ty)?;)*) => {
        $(
            #[inline(always)]
            fn $name(self, $($arg: $ty),*) $(-> $out)? {
                self.0.$name($($arg),*)
            }
        )*
    };
}

impl<S: Simd> Simd for Unfused<S> {
    type F = S::F;
    type I = S::I;

    const NAME: &'static str = "unfused";
    const TILE: usize = S::TILE;
    const MANY_TILE: usize = S::MANY_TILE;
    // Few products run on these tables: what makes some of them a little faster is not compiled for them.
    const BETWEEN: bool = false;
    const MANY_PANELS: usize = S::MANY_PANELS;
    const TOGETHER: bool = S::TOGETHER;
    const CHAINS: usize = S::CHAINS;
    const INTEGERS_FIRST: bool = S::INTEGERS_FIRST;

    fn detect() -> Option<Self> {
        S::detect().map(Self)
    }
    #[inline(always)]
    fn run<O: Op>(self, op: O) -> O::Out {
        self.0.run(Within(op))
    }
    #[inline(always)]
    fn fma(self, a: S::F, b: S::F, c: S::F) -> S::F {
        self.0.add(self.0.mul(a, b), c)
    }
    #[inline(always)]
    fn fma_one(self, a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
    #[inline(always)]
    fn dots<const T: usize, const N: usize>(
        self,
        acc: [S::I; T],
        w: &[S::I; N],
        max: u8,
        x: &[&[[i8; 4]; N]; T],
    ) -> [S::I; T] {
        self.0.dots(acc, w, max, x)
    }
    #[inline(always)]
    fn dots_signed<const T: usize, const N: usize>(
        self,
        acc: [S::I; T],
        w: &[S::I; N],
        x: &[&[[i8; 4]; N]; T],
    ) -> [S::I; T] {
        self.0.dots_signed(acc, w, x)
    }

    as_within! {
        fn splat(x: f32) -> S::F;
        fn load(x: &[f32; LANES]) -> S::F;
        fn store(v: S::F, out: &mut [f32; LANES]);
        fn load_f16(x: &[u16; LANES]) -> S::F;
        fn store_f16(v: S::F, out: &mut [u16; LANES]);
        fn load_bf16(x: &[u16; LANES]) -> S::F;
        fn add(a: S::F, b: S::F) -> S::F;
        fn sub(a: S::F, b: S::F) -> S::F;
        fn mul(a: S::F, b: S::F) -> S::F;
        fn div(a: S::F, b: S::F) -> S::F;
        fn select_gt(a: S::F, b: S::F, x: S::F, y: S::F) -> S::F;
        fn swap_pairs(v: S::F) -> S::F;
        fn round_i32(v: S::F) -> S::I;
        fn to_f32(v: S::I) -> S::F;
        fn bits_f32(v: S::I) -> S::F;
        fn splat_i(x: i32) -> S::I;
        fn splat_bytes(x: &[i8; 4]) -> S::I;
        fn load_bytes(x: &[u8; 64]) -> S::I;
        fn load_u8(x: &[u8; LANES]) -> S::I;
        fn load_i8(x: &[u8; LANES]) -> S::I;
        fn load_u16(x: &[u16; LANES]) -> S::I;
        fn store_low_bytes(v: S::I, out: &mut [i8; LANES]);
        fn add_i(a: S::I, b: S::I) -> S::I;
        fn and_i(a: S::I, b: S::I) -> S::I;
        fn or_i(a: S::I, b: S::I) -> S::I;
        fn shl_i(v: S::I, n: u32) -> S::I;
        fn shr_i(v: S::I, n: u32) -> S::I;
        fn lookup(table: &[u8; 16], index: S::I) -> S::I;
        fn sum_i(v: S::I) -> i32;
        fn dot4(acc: S::I, w: S::I, x: S::I) -> S::I;
        fn dot4_signed(acc: S::I, w: S::I, x: S::I) -> S::I;
        fn shifted_start(neg_sum: i32, n: u32) -> S::I;
        fn signed_start(neg_sum: i32) -> S::I;
        fn prefetch(bytes: &[u8], ahead: usize, len: usize);
        fn prefetch_into(cache: Cache, bytes: &[u8], ahead: usize, len: usize);
        fn max(a: S::F, b: S::F) -> S::F;
        fn load_part(x: &[f32]) -> S::F;
        fn store_part(v: S::F, out: &mut [f32]);
        fn sum(v: S::F) -> f32;
        fn max_lane(v: S::F) -> f32;
    }
}

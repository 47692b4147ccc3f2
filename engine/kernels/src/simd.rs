//! The small set of vector operations that every kernel is written in: sixteen virtual lanes, whatever the
//! registers of the machine.
//!
//! Each operation gives the same bits on every implementation. Floats are IEEE single precision, rounded to
//! nearest even, with fused multiply-add (or without any, see [`NUMERICS_UNFUSED`](super::table::NUMERICS_UNFUSED)), and
//! subnormals are not flushed. Integers wrap. So a kernel that is
//! written once in these operations gives the same bits on every table. NaN payloads are the one exception.
//!
//! A [`Simd`] value is a proof. It can only be had from [`Simd::detect`], so its holder may use the instructions behind
//! it. Reductions over lanes use one fixed tree ([`Simd::sum`]).

pub use brigade_shapes::LANES;

pub use crate::ahead::Cache;

/// Most tokens that a matmul tile takes at once ([`Simd::TILE`]).
pub const MAX_TILE: usize = 8;

/// A computation that is compiled once per instruction set; see [`Simd::run`].
pub trait Op {
    /// Result of the body.
    type Out;
    /// The body. Implementations are `#[inline(always)]`, so that it is compiled with the
    /// instructions that `s` proves.
    fn eval<S: Simd>(self, s: S) -> Self::Out;
}

/// Sixteen lanes of f32 or i32 (or 64 bytes) and what can be done with them.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen f32 lanes.
    type F: Copy;
    /// Sixteen i32, or 64 bytes, four to a lane, little-endian.
    type I: Copy;

    /// Name of the table built on this.
    const NAME: &'static str;
    /// Tokens that a matmul tile holds in registers at once; results do not depend on it.
    const TILE: usize;
    /// Tokens of a tile where weights are unpacked beforehand: [`Simd::TILE`], or more where that leaves
    /// registers free.
    const MANY_TILE: usize = Self::TILE;
    /// Whether there are tiles of heights that are no powers of two. Results do not depend on it.
    const BETWEEN: bool = true;
    /// Tiles of [`Simd::TILE`] rows that take a block in turn while it is unpacked, where unpacking is many instructions and
    /// registers hold no higher tile. Results do not depend on it.
    const TILES_A_BLOCK: usize = 1;
    /// Panels of a tile where weights are unpacked beforehand: two halve the loads of activations, where registers hold
    /// the sums of both.
    const MANY_PANELS: usize = 1;
    /// Whether the rows of a tile take each vector of weights together ([`Simd::dots`]), rather than row
    /// by row all vectors: where registers do not hold a block's weights. Results do not depend on it.
    const TOGETHER: bool = false;
    /// Chains of products, each of which waits for the one before, that keep the multipliers busy. A tile of fewer rows
    /// has several chains for each row, and adds them up at the end of a block. Results do not depend on the number.
    const CHAINS: usize = 1;
    /// Whether the sums of a slice that was unpacked beforehand take all its integers before its floats: where registers
    /// do not hold both. Results do not depend on it.
    const INTEGERS_FIRST: bool = false;

    /// The proof value, if this machine has the instructions.
    fn detect() -> Option<Self>;
    /// Compiles and runs `op` with the instructions enabled.
    fn run<O: Op>(self, op: O) -> O::Out;

    /// All lanes set to `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Lanes read from memory.
    fn load(self, x: &[f32; LANES]) -> Self::F;
    /// Writes the lanes to memory.
    fn store(self, v: Self::F, out: &mut [f32; LANES]);
    /// Half-precision lanes, widened exactly.
    fn load_f16(self, x: &[u16; LANES]) -> Self::F;
    /// Lanes rounded to half precision, to nearest even.
    fn store_f16(self, v: Self::F, out: &mut [u16; LANES]);
    /// bfloat16 lanes, widened exactly.
    fn load_bf16(self, x: &[u16; LANES]) -> Self::F;
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// [`Simd::fma`] of single values.
    #[inline(always)]
    fn fma_one(self, a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
    /// `if a > b { x } else { y }`; false where either is NaN.
    fn select_gt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// Lanes 2i and 2i+1 exchanged.
    fn swap_pairs(self, v: Self::F) -> Self::F;
    /// To the nearest integer, ties to even; lanes out of i32's range are unspecified.
    fn round_i32(self, v: Self::F) -> Self::I;
    /// i32 to f32, rounded to nearest even.
    fn to_f32(self, v: Self::I) -> Self::F;
    /// The same bits read as f32.
    fn bits_f32(self, v: Self::I) -> Self::F;

    /// All lanes set to `x`.
    fn splat_i(self, x: i32) -> Self::I;
    /// The same four bytes in all lanes.
    fn splat_bytes(self, x: &[i8; 4]) -> Self::I;
    /// 64 bytes from memory.
    fn load_bytes(self, x: &[u8; 64]) -> Self::I;
    /// Sixteen bytes widened to lanes, zero-extended.
    fn load_u8(self, x: &[u8; LANES]) -> Self::I;
    /// Sixteen bytes widened to lanes, sign-extended.
    fn load_i8(self, x: &[u8; LANES]) -> Self::I;
    /// Sixteen half-words widened to lanes, zero-extended.
    fn load_u16(self, x: &[u16; LANES]) -> Self::I;
    /// The low byte of each lane.
    fn store_low_bytes(self, v: Self::I, out: &mut [i8; LANES]);
    /// `a + b`, wrapping.
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise and.
    fn and_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn or_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Lanes shifted left by `n < 32` bits.
    fn shl_i(self, v: Self::I, n: u32) -> Self::I;
    /// Lanes shifted right by `n < 32` bits, zeros shifted in.
    fn shr_i(self, v: Self::I, n: u32) -> Self::I;
    /// Each byte replaced by `table[byte]`; bytes must be below 16.
    fn lookup(self, table: &[u8; 16], index: Self::I) -> Self::I;
    /// Sum over lanes, wrapping.
    fn sum_i(self, v: Self::I) -> i32;

    /// `acc + Σ w·x` over the four bytes of each lane, `w` unsigned and at most 127, `x` signed and
    /// at least -127: exact.
    fn dot4(self, acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// Like `dot4` for weights in `-128..=127` stored with 128 added, except that the accumulator
    /// must have started at [`Simd::signed_start`] of the activations' negated sum.
    fn dot4_signed(self, acc: Self::I, w: Self::I, x: Self::I) -> Self::I;
    /// [`Simd::dot4`] of `T` rows with the same weights: to `acc[t]` is added the product of each vector
    /// of `w`, whose bytes are at most `max`, with the four bytes `x[t][v]`.
    #[inline(always)]
    fn dots<const T: usize, const N: usize>(
        self,
        acc: [Self::I; T],
        w: &[Self::I; N],
        max: u8,
        x: &[&[[i8; 4]; N]; T],
    ) -> [Self::I; T] {
        let _ = max;
        chained(self, acc, w, x, Self::dot4)
    }
    /// [`Simd::dots`] of [`Simd::dot4_signed`].
    #[inline(always)]
    fn dots_signed<const T: usize, const N: usize>(
        self,
        acc: [Self::I; T],
        w: &[Self::I; N],
        x: &[&[[i8; 4]; N]; T],
    ) -> [Self::I; T] {
        chained(self, acc, w, x, Self::dot4_signed)
    }
    /// Start of an accumulator of `dot4` for weights stored with `1 << n` added, given `-Σx` over all its activations.
    #[inline(always)]
    fn shifted_start(self, neg_sum: i32, n: u32) -> Self::I {
        self.shl_i(self.splat_i(neg_sum), n)
    }
    /// Start of an accumulator of `dot4_signed`, given `-Σx` over all its activations.
    fn signed_start(self, neg_sum: i32) -> Self::I;

    /// Two columns as pairs of bfloat16 values: of each lane `first` in the low half and `second` in the high one, both rounded to
    /// nearest even. Subnormal values may become zero.
    #[inline(always)]
    fn pair(self, first: Self::F, second: Self::F) -> Self::I {
        let mut lanes = [[0.0; LANES]; 2];
        self.store(first, &mut lanes[0]);
        self.store(second, &mut lanes[1]);
        let mut bytes = [[0; 4]; LANES];
        for i in 0..LANES {
            bytes[i] = bf16_pair(lanes[0][i], lanes[1][i]).to_le_bytes();
        }
        self.load_bytes(&bytemuck::cast(bytes))
    }
    /// `acc` plus the products of both values of each lane, those of the high halves first: two sums, each rounded, as the
    /// products are exact. Subnormal values, products and sums may be zero.
    #[inline(always)]
    fn dot_pairs(self, acc: Self::F, w: Self::I, x: Self::I) -> Self::F {
        let high = self.splat_i(!0xffff);
        let [w_low, x_low] = [w, x].map(|v| self.bits_f32(self.shl_i(v, 16)));
        let [w_high, x_high] = [w, x].map(|v| self.bits_f32(self.and_i(v, high)));
        self.fma(w_low, x_low, self.fma(w_high, x_high, acc))
    }

    /// Asks for the cache lines `ahead..ahead + len` bytes from the start of `bytes`, which may lie
    /// beyond its end, into the first cache. A hint: implementations without one do nothing.
    #[inline(always)]
    fn prefetch(self, bytes: &[u8], ahead: usize, len: usize) {
        let _ = (bytes, ahead, len);
    }

    /// The same, into the cache that is named.
    #[inline(always)]
    fn prefetch_into(self, cache: Cache, bytes: &[u8], ahead: usize, len: usize) {
        let _ = (cache, bytes, ahead, len);
    }

    /// All lanes set to 0.
    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }
    /// The greater of `a` and `b`; `b` where either is NaN.
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        self.select_gt(a, b, a, b)
    }
    /// Up to sixteen values; the other lanes are zero.
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> Self::F {
        let mut lanes = [0.0; LANES];
        lanes[..x.len()].copy_from_slice(x);
        self.load(&lanes)
    }
    /// The first `out.len()` (at most sixteen) lanes to memory.
    #[inline(always)]
    fn store_part(self, v: Self::F, out: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        out.copy_from_slice(&lanes[..out.len()]);
    }
    /// Sum over lanes: halves added onto each other, 16 to 8 to 4 to 2 to 1.
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        fold(lanes, |a, b| a + b)
    }
    /// Greatest lane, by the same tree.
    #[inline(always)]
    fn max_lane(self, v: Self::F) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        fold(lanes, |a, b| if a > b { a } else { b })
    }
}

/// Two values as bfloat16, rounded to nearest even, `first` in the low half.
#[inline(always)]
pub(crate) fn bf16_pair(first: f32, second: f32) -> u32 {
    let bits = |x: f32| u32::from(half::bf16::from_f32(x).to_bits());
    bits(first) | bits(second) << 16
}

/// Most chains of one row.
const MAX_CHAINS: usize = 4;

/// Chains that each of `n_rows` rows has.
const fn chains<S: Simd>(n_rows: usize) -> usize {
    match S::CHAINS / n_rows {
        4.. => MAX_CHAINS,
        2..4 => 2,
        _ => 1,
    }
}

/// Adds to each `acc[t]` the results of `dot` for the vectors of `w` and the four bytes `x[t][v]`, in as many chains as
/// keep the multipliers busy.
#[inline(always)]
pub fn chained<S: Simd, const T: usize, const N: usize>(
    s: S,
    mut acc: [S::I; T],
    w: &[S::I; N],
    x: &[&[[i8; 4]; N]; T],
    dot: impl Fn(S, S::I, S::I, S::I) -> S::I,
) -> [S::I; T] {
    let chains = const { chains::<S>(T) };
    let mut others = [[s.splat_i(0); T]; MAX_CHAINS - 1];
    for v in 0..N {
        let sums = if v % chains == 0 { &mut acc } else { &mut others[v % chains - 1] };
        for t in 0..T {
            sums[t] = dot(s, sums[t], w[v], s.splat_bytes(&x[t][v]));
        }
    }
    for others in &others[..chains - 1] {
        for t in 0..T {
            acc[t] = s.add_i(acc[t], others[t]);
        }
    }
    acc
}

/// The one tree by which lanes become a scalar.
#[inline(always)]
fn fold(mut lanes: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

//! The exponential that every kernel uses, and functions that are made of it.
//!
//! `exp(x) = 2^n * e^r` with `n = round(x / ln 2)` and `|r| <= ln 2 / 2`. `e^r` is its Taylor sum to the
//! seventh power, whose remainder there is below 6e-9. Together with the roundings, the relative error stays
//! below [`EXP_ERROR`] (tested over the whole range). Below -87.3, where the result would be subnormal, it is
//! 0. Above 88.37 it is infinite, half a unit earlier than the type ends.

use crate::simd::Simd;

/// Bound of the relative error of [`exp`] between its two ends.
pub const EXP_ERROR: f64 = 2.0e-7;

const LOWEST: f32 = -87.33;
const HIGHEST: f32 = 88.37;
/// ln 2 in two parts; the first has few enough bits that `n * LN2_HIGH` is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// `e^x`, lane by lane.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    let n = s.round_i32(s.mul(x, s.splat(std::f32::consts::LOG2_E)));
    let n_float = s.to_f32(n);
    let r = s.fma(n_float, s.splat(-LN2_HIGH), x);
    let r = s.fma(n_float, s.splat(-LN2_LOW), r);
    let mut sum = s.splat(1.0 / 5040.0);
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = s.fma(sum, r, s.splat(coefficient));
    }
    let power = s.bits_f32(s.shl_i(s.add_i(n, s.splat_i(127)), 23));
    let y = s.mul(sum, power);
    let y = s.select_gt(x, s.splat(HIGHEST), s.splat(f32::INFINITY), y);
    s.select_gt(s.splat(LOWEST), x, s.zero(), y)
}

/// `x / (1 + e^-x)`.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    let e = exp(s, s.sub(s.zero(), x));
    s.div(x, s.add(s.splat(1.0), e))
}

/// `x` of 0 or above, or 0 in the place of a subnormal number. Processors are slow with those, and some GPUs have none:
/// what is made of them would differ.
#[inline(always)]
fn normal_or_0<S: Simd>(s: S, x: S::F) -> S::F {
    s.select_gt(s.splat(f32::MIN_POSITIVE), x, s.zero(), x)
}

/// `1 / (1 + e^-x)`, or 0 where that is subnormal.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let e = exp(s, s.sub(s.zero(), x));
    normal_or_0(s, s.div(s.splat(1.0), s.add(s.splat(1.0), e)))
}

/// Up to here `tanh` is a fraction of polynomials.
const TANH_SMALL: f32 = 0.625;

/// `tanh x`. Up to [`TANH_SMALL`] it is the fifth convergent of its continued fraction `x / (1 + x² / (3 + x²
/// / (5 + ...)))`, which is off there by less than 1e-9 of it. Beyond, it is `1 - 2 / (1 + e^2x)`. Exact to a
/// few units of the result.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let square = s.mul(x, x);
    let over = s.fma(s.add(square, s.splat(105.0)), square, s.splat(945.0));
    let under = s.fma(s.fma(square, s.splat(15.0), s.splat(420.0)), square, s.splat(945.0));
    let small = s.div(s.mul(x, over), under);
    let e = exp(s, s.add(x, x));
    let large = s.sub(s.splat(1.0), s.div(s.splat(2.0), s.add(s.splat(1.0), e)));
    s.select_gt(square, s.splat(TANH_SMALL * TANH_SMALL), large, small)
}

/// `ln(1 + e^x)`, as `max(x, 0) + ln(1 + e^-|x|)`. It is 0 where half of it is subnormal.
///
/// `ln(1 + u) = 2 atanh(u / (2 + u))` for `u` in 0..=1. The series in `t = u / (2 + u) <= 1/3` is summed to
/// `t^17`. Less than 1e-9 of the value is left beyond that.
#[inline(always)]
pub(crate) fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    let negated = s.sub(s.zero(), x);
    let u = exp(s, s.select_gt(x, s.zero(), negated, x));
    let t = normal_or_0(s, s.div(u, s.add(u, s.splat(2.0))));
    let square = s.mul(t, t);
    let mut sum = s.splat(2.0 / 17.0);
    for odd in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = s.fma(sum, square, s.splat(2.0 / odd));
    }
    s.fma(sum, t, s.max(x, s.zero()))
}

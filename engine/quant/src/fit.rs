//! Choosing scales: what all quantisers share.
//!
//! Each fit spreads the levels over the range and rounds the values to them. Then it moves the scale (and the
//! offset) to where the squared error is least for these levels. On weights, one round of this is within a
//! few percent of an exhaustive search, at a tenth of its cost.

/// Rounds to the nearest whole number, halves up, clamped to `[lo, hi]`.
///
/// Shifts into the positive range and truncates, which compiles to plain vector code everywhere.
#[inline(always)]
pub(super) fn round_clamp(x: f32, lo: i32, hi: i32) -> i32 {
    ((x - lo as f32 + 0.5) as i32).clamp(0, hi - lo) + lo
}

/// `1 / x`, or 0 where that is not a number to work with.
#[inline(always)]
pub(super) fn inverse(x: f32) -> f32 {
    let inv = 1.0 / x;
    if inv.is_finite() { inv } else { 0.0 }
}

/// The element of largest magnitude, with its sign; 0 for no elements.
pub(super) fn extreme(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |best: f32, v| if v.abs() > best.abs() { *v } else { best })
}

/// Scale `s` so that `s * q`, `q` in `[-half, half - 1]`, is near `values`. Its sign is such that the
/// value of largest magnitude falls to the side with the extra level.
pub(super) fn symmetric(values: &[f32], half: i32) -> f32 {
    let scale = extreme(values) / -(half as f32);
    let inv = inverse(scale);
    let (mut xq, mut qq) = (0.0, 0.0);
    for v in values {
        let q = round_clamp(v * inv, -half, half - 1) as f32;
        xq += v * q;
        qq += q * q;
    }
    if qq > 0.0 { xq / qq } else { scale }
}

/// `(scale, offset)` so that `scale * q + offset`, `q` in `[0, levels]`, is near `values`.
pub(super) fn affine(values: &[f32], levels: i32) -> (f32, f32) {
    let lo = values.iter().copied().fold(f32::INFINITY, f32::min);
    let hi = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    refine_affine(values, levels, lo, hi)
}

/// As [`affine`], with an offset of at most 0. Returns `(scale, -offset)`, both at least 0.
pub(super) fn affine_below_zero(values: &[f32], levels: i32) -> (f32, f32) {
    let lo = values.iter().copied().fold(0.0, f32::min);
    let hi = values.iter().copied().fold(0.0, f32::max);
    let (scale, offset) = refine_affine(values, levels, lo, hi);
    // An offset above 0 cannot be stored; the plain range from 0 is near enough then.
    if offset > 0.0 { ((hi - lo) / levels as f32, -lo) } else { (scale, -offset) }
}

fn refine_affine(values: &[f32], levels: i32, lo: f32, hi: f32) -> (f32, f32) {
    let scale = (hi - lo) / levels as f32;
    let inv = inverse(scale);
    let n = values.len() as f32;
    let (mut q1, mut qq, mut x1, mut xq) = (0.0, 0.0, 0.0, 0.0);
    for v in values {
        let q = round_clamp((v - lo) * inv, 0, levels) as f32;
        q1 += q;
        qq += q * q;
        x1 += v;
        xq += v * q;
    }
    let det = n * qq - q1 * q1;
    let fitted = ((n * xq - q1 * x1) / det, (qq * x1 - q1 * xq) / det);
    if det > 0.0 && fitted.0 > 0.0 { fitted } else { (scale, lo) }
}

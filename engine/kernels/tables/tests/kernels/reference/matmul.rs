//! Products and the quantising of activations, plainly: weights are dequantised, and sums are taken in f64.
//! Tests compare the kernels with it.

use brigade_quant::{GgmlType, dequantize_row};

/// A block of 8-bit activations.
pub(crate) struct PlainBlock {
    pub(crate) d: f32,
    pub(crate) q: Vec<i8>,
}

/// Quantises 32 values: `d = amax / 127`, `q = round_half_even(x * 127 / amax)`.
pub(crate) fn quantize_block(x: &[f32]) -> PlainBlock {
    let amax = x.iter().fold(0.0f32, |m, v| m.max(v.abs()));
    if amax < 1e-30 {
        return PlainBlock { d: 0.0, q: vec![0; x.len()] };
    }
    let inverse = 127.0 / amax;
    let q = x.iter().map(|v| (v * inverse).round_ties_even() as i8).collect();
    PlainBlock { d: amax / 127.0, q }
}

/// A row as its 8-bit form stands for it.
pub(crate) fn through_8_bits(x: &[f32]) -> Vec<f64> {
    let blocks = x.chunks(32).map(quantize_block);
    blocks.flat_map(|b| b.q.into_iter().map(move |q| f64::from(b.d) * f64::from(q))).collect()
}

/// Values as bfloat16 stands for them.
pub(crate) fn through_bf16(x: &[f32]) -> Vec<f64> {
    x.iter().map(|x| f64::from(half::bf16::from_f32(*x).to_f32())).collect()
}

/// An output element with what its rounding errors are measured against.
pub(crate) struct Element {
    /// `Σ w x`.
    pub(crate) value: f64,
    /// `Σ |w| |x|`.
    pub(crate) magnitude: f64,
    /// `max |w| * Σ |x|`: what scales, codes and minima may reach one by one.
    pub(crate) ceiling: f64,
}

/// `x` (one row) times the weights `[rows, cols]` in `bytes`.
pub(crate) fn matmul_row(ty: GgmlType, rows: usize, bytes: &[u8], x: &[f64]) -> Vec<Element> {
    let row_bytes = ty.row_bytes(x.len()).expect("whole blocks");
    let weights = (0..rows).map(|r| {
        let mut w = vec![0.0; x.len()];
        dequantize_row(ty, "test", &bytes[r * row_bytes..][..row_bytes], &mut w)
            .expect("a supported type");
        w
    });
    let element = |w: Vec<f32>| {
        let products = || w.iter().zip(x).map(|(w, x)| f64::from(*w) * x);
        let top = w.iter().fold(0.0f64, |m, w| m.max(f64::from(w.abs())));
        Element {
            value: products().sum(),
            magnitude: products().map(f64::abs).sum(),
            ceiling: top * x.iter().map(|x| x.abs()).sum::<f64>(),
        }
    };
    weights.map(element).collect()
}

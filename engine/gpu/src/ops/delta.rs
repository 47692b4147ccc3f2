//! The gated delta rule: linear attention whose state decays, is corrected towards each new value, and is read by the
//! query. With one decay for each key channel it is KDA (Kimi Linear, arXiv 2510.26692). With one decay for each head it is
//! the gated delta net (arXiv 2412.06464).
//!
//! One head has the state `S [d_k, d_v]`, decay factors `a [d_k]` and the rate `beta`. Row by row: `S = diag(a) S; e = beta
//! (v - Sᵀk); S = S + k eᵀ; o = Sᵀq / sqrt(d_k)`. States lie in strips of sixteen values, `[d_v / 16][d_k][16]` for each
//! head.

use brigade_shapes::{Decay, DeltaShape, KeyHeads};
use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use super::scan::{COLUMNS, ColumnsSpan, ScanPart};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::shader::{Shader, shader};
use crate::span::SpanMut;

static DELTA: Shader = shader!("delta");

/// Widest key heads: those of two rows are in shared memory.
const MAX_KEYS: usize = 512;

/// The operands of a delta rule, a row a token.
#[derive(Clone, Copy, Debug)]
pub struct DeltaRows<'a> {
    /// `[n, n_key_head, d_k]`, normed by the caller.
    pub q: ColumnsSpan<'a>,
    /// `[n, n_key_head, d_k]`, normed by the caller.
    pub k: ColumnsSpan<'a>,
    /// `[n, n_head, d_v]`.
    pub v: ColumnsSpan<'a>,
    /// Decay factors in 0..=1, `[n, n_head, d_k]` or `[n, n_head]`.
    pub decay: ColumnsSpan<'a>,
    /// `[n, n_head]`, in 0..=1.
    pub beta: ColumnsSpan<'a>,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    parts: u64,
    states: u64,
    q: u64,
    k: u64,
    v: u64,
    decay: u64,
    beta: u64,
    result: u64,
    n_units: u32,
    n_head: u32,
    n_key_head: u32,
    strides: [u32; 5],
    scale: f32,
    pad: u32,
}

impl Gpu {
    /// Runs the delta rule over the rows of `parts`: `out` is `[n, n_head, d_v]`, `states` is `[n_slots,
    /// shape.state_len()]` and follows.
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn delta_scan(
        &self,
        shape: &DeltaShape,
        parts: &[ScanPart],
        states: SpanMut<'_>,
        x: DeltaRows<'_>,
        out: SpanMut<'_>,
    ) {
        let DeltaShape { n_head, n_key_head, d_k, d_v, .. } = *shape;
        assert!(n_key_head > 0 && n_head.is_multiple_of(n_key_head), "delta: {shape:?}");
        assert!(shape.state_len() > 0 && d_k <= MAX_KEYS, "delta: {shape:?}");
        let n_rows = out.values() / (n_head * d_v);
        assert_eq!(count(out.values()) as usize, n_rows * n_head * d_v, "delta: length of out");
        let (q, q_stride) = x.q.place(n_rows, n_key_head * d_k, "delta: q");
        let (k, k_stride) = x.k.place(n_rows, n_key_head * d_k, "delta: k");
        let (v, v_stride) = x.v.place(n_rows, n_head * d_v, "delta: v");
        let (decay, decay_stride) = x.decay.place(n_rows, shape.decay_len(), "delta: decay");
        let (beta, beta_stride) = x.beta.place(n_rows, n_head, "delta: beta");
        count(shape.state_len());
        ScanPart::check(parts, n_rows, states.values() / shape.state_len(), "delta");

        let (parts, n) = self.upload_parts(parts.iter().copied());
        let n_units = n * n_head * d_v.div_ceil(COLUMNS);
        let push = Push {
            parts,
            states: states.address(),
            q,
            k,
            v,
            decay,
            beta,
            result: out.address(),
            n_units: count(n_units),
            n_head: n_head as u32,
            n_key_head: n_key_head as u32,
            strides: [q_stride, k_stride, v_stride, decay_stride, beta_stride],
            scale: 1.0 / (d_k as f32).sqrt(),
            pad: 0,
        };
        let per_channel = u32::from(shape.decay == Decay::PerChannel);
        let tiled = u32::from(shape.key_heads == KeyHeads::Tiled);
        let constants = [d_k as u32, d_v as u32, per_channel, tiled];
        // SAFETY: the kernel reads rows of the operands, reads and writes the states of the parts' slots, and writes the
        // parts' rows of `out`: all of them are there (checked), and no two parts have one in common.
        unsafe { self.dispatch(Order::After, &DELTA, &constants, &push, lines(n_units)) };
    }
}

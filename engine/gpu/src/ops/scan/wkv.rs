//! The time mixing of RWKV-6 and RWKV-7. Each head has a matrix as its state, `d` keys by `d` values: `S [heads, tiles of
//! 16 values, keys, 16]`. Values are independent of each other; keys are taken in ascending order.

use brigade_ops::{Wkv6, Wkv7};
use bytemuck::{Pod, Zeroable};

use super::COLUMNS;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::SpanMut;
use crate::operands::OnGpu;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static WKV6: Shader = shader!("wkv6");
static WKV7: Shader = shader!("wkv7");

/// Widest heads: keys of some rows are in shared memory.
const MAX_HEAD: usize = 256;

/// Values of a head that a workgroup of `wkv7.comp` has.
const WKV7_COLUMNS: usize = 64;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push6 {
    parts: u64,
    states: u64,
    rows: [u64; 4],
    own: u64,
    result: u64,
    n_units: u32,
    n_heads: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push7 {
    parts: u64,
    states: u64,
    rows: [u64; 6],
    result: u64,
    n_units: u32,
    n_heads: u32,
}

impl Gpu {
    /// Records the op [`Wkv6`].
    ///
    /// # Panics
    /// If shapes disagree, two parts share a slot, or heads are wider than the kernel has room for.
    pub fn wkv6(&self, op: Wkv6<'_, OnGpu>) {
        op.check();
        let Wkv6 { n_heads, d, parts, states, rows, out } = op;
        fits("wkv6", d, &out);
        let all = [rows.r, rows.w, rows.k, rows.v];
        let (parts, n) = self.upload_parts(parts.iter().copied());
        let n_units = n * n_heads * d.div_ceil(COLUMNS);
        let push = Push6 {
            parts,
            states: states.address(),
            rows: all.map(|x| x.address()),
            own: rows.own.map_or(0, |own| own.address()),
            result: out.address(),
            n_units: count(n_units),
            n_heads: n_heads as u32,
        };
        let constants = [d as u32, u32::from(rows.own.is_some())];
        // SAFETY: the kernel reads rows of the operands, and `own` where there is one, reads and writes the states of the
        // parts' slots, and writes the parts' rows of `out`: all are there (checked), and no two parts have one in common.
        unsafe { self.dispatch(Order::After, &WKV6, &constants, &push, lines(n_units)) };
    }

    /// Records the op [`Wkv7`].
    ///
    /// # Panics
    /// If shapes disagree, two parts share a slot, or heads are wider than the kernel has room for.
    pub fn wkv7(&self, op: Wkv7<'_, OnGpu>) {
        op.check();
        let Wkv7 { n_heads, d, parts, states, rows, out } = op;
        fits("wkv7", d, &out);
        let all = [rows.r, rows.w, rows.k, rows.v, rows.kappa, rows.kappa_a];
        let (parts, n) = self.upload_parts(parts.iter().copied());
        let n_units = n * n_heads * d.div_ceil(WKV7_COLUMNS);
        let push = Push7 {
            parts,
            states: states.address(),
            rows: all.map(|x| x.address()),
            result: out.address(),
            n_units: count(n_units),
            n_heads: n_heads as u32,
        };
        // SAFETY: the kernel reads rows of the operands, reads and writes the states of the parts' slots, and writes the
        // parts' rows of `out`: all of them are there (checked), and no two parts have one in common.
        unsafe { self.dispatch(Order::After, &WKV7, &[d as u32], &push, lines(n_units)) };
    }
}

/// Panics where the kernels have no room for heads of `d` values, or do not count that many values.
fn fits(op: &str, d: usize, out: &SpanMut<'_>) {
    assert!(d <= MAX_HEAD, "{op}: heads of {d}");
    count(out.values());
}

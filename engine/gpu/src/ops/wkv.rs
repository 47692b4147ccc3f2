//! The time mixing of RWKV-6 and RWKV-7. Each head has a matrix as its state, `d` keys by `d` values: `S [heads, tiles of
//! 16 values, keys, 16]`. Values are independent of each other; keys are taken in ascending order.

use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use super::scan::{COLUMNS, LANES, ScanPart};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::shader::{Shader, shader};
use crate::span::{Span, SpanMut};

static WKV6: Shader = shader!("wkv6");
static WKV7: Shader = shader!("wkv7");

/// Widest heads: keys of some rows are in shared memory.
const MAX_HEAD: usize = 256;

/// Values of a head that a workgroup of `wkv7.comp` has.
const WKV7_COLUMNS: usize = 64;

/// What RWKV-6's scan reads; each is `[n_rows, n_heads * d]`, and a head is `d` neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Wkv6Rows<'a> {
    /// Receptance: reads the state out.
    pub r: Span<'a>,
    /// Decay of each key, in 0..=1.
    pub w: Span<'a>,
    /// Keys.
    pub k: Span<'a>,
    /// Values.
    pub v: Span<'a>,
    /// How much of a row's own key and value is read, `[n_heads * d]`: `r` reads the state before the row, plus so much of
    /// the row. `None`: it reads the state behind the row.
    pub own: Option<Span<'a>>,
}

/// What RWKV-7's scan reads; each is `[n_rows, n_heads * d]`, and a head is `d` neighbours.
#[derive(Clone, Copy, Debug)]
pub struct Wkv7Rows<'a> {
    /// Receptance: reads the state out.
    pub r: Span<'a>,
    /// Decay of each key, in 0..1.
    pub w: Span<'a>,
    /// Keys.
    pub k: Span<'a>,
    /// Values.
    pub v: Span<'a>,
    /// Normed removal keys `κ`.
    pub kappa: Span<'a>,
    /// Their learning rates times themselves, `κ ⊙ a`.
    pub kappa_a: Span<'a>,
}

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
    /// Runs RWKV-6's recurrence, `S = S · diag(w) + vᵀ k`, over the rows of `parts`, from their states
    /// (`[n_slots, n_heads * d * d]`), which follow. `out` is `[n_rows, n_heads * d]`.
    ///
    /// # Panics
    /// If shapes disagree, `d` is no multiple of 16 or above 256, or two parts share a slot.
    pub fn wkv6(
        &self,
        (n_heads, d): (usize, usize),
        parts: &[ScanPart],
        states: SpanMut<'_>,
        rows: Wkv6Rows<'_>,
        out: SpanMut<'_>,
    ) {
        let all = [rows.r, rows.w, rows.k, rows.v];
        check("wkv6", (n_heads, d), parts, &states, &all, &out);
        assert!(rows.own.is_none_or(|own| own.values() == n_heads * d), "wkv6: one row of own");
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

    /// Runs RWKV-7's recurrence, `S = S · (diag(w) − κᵀ(κ ⊙ a)) + vᵀ k`, over the rows of `parts`, from their states
    /// (`[n_slots, n_heads * d * d]`), which follow. `out` is `[n_rows, n_heads * d]`.
    ///
    /// # Panics
    /// If shapes disagree, `d` is no multiple of 16 or above 256, or two parts share a slot.
    pub fn wkv7(
        &self,
        (n_heads, d): (usize, usize),
        parts: &[ScanPart],
        states: SpanMut<'_>,
        rows: Wkv7Rows<'_>,
        out: SpanMut<'_>,
    ) {
        let all = [rows.r, rows.w, rows.k, rows.v, rows.kappa, rows.kappa_a];
        check("wkv7", (n_heads, d), parts, &states, &all, &out);
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

/// Panics where operands do not have the sizes of the heads.
fn check(
    op: &str,
    (n_heads, d): (usize, usize),
    parts: &[ScanPart],
    states: &SpanMut<'_>,
    rows: &[Span<'_>],
    out: &SpanMut<'_>,
) {
    assert!(d > 0 && d.is_multiple_of(LANES) && d <= MAX_HEAD, "{op}: heads of {d}");
    let width = n_heads * d;
    assert!(width > 0 && rows.iter().all(|x| x.len() == out.len()), "{op}: lengths");
    let n_rows = out.values() / width;
    assert_eq!(count(out.values()) as usize, n_rows * width, "{op}: length of out");
    count(width * d);
    ScanPart::check(parts, n_rows, states.values() / (width * d), op);
}

//! The selective scan of Mamba-1 (arXiv 2312.00752, section 3.2) over the rows of each sequence.
//!
//! Every channel `c` and state index `n` decays by itself, with `Δ[c] = softplus(dt[c] + bias[c])`:
//!
//! - `S[c][n] = S[c][n] · exp(Δ[c] · A[c][n]) + B[n] · Δ[c] · u[c]`
//! - `y[c] = Σ_n S[c][n] · C[n] + D[c] · u[c]`, with `n` ascending

use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use super::scan::{COLUMNS, ColumnsSpan, LANES, ScanPart};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::shader::{Shader, shader};
use crate::span::{Span, SpanMut};

static MAMBA: Shader = shader!("mamba");

/// Most state values of a channel: B and C of some rows are in shared memory.
const MAX_STATE: usize = 256;

/// The constants of a selective scan.
#[derive(Clone, Copy, Debug)]
pub struct MambaSpans<'a> {
    /// Channels.
    pub channels: usize,
    /// State values of a channel, at most 256.
    pub n_state: usize,
    /// `[channels / 16 rounded up, n_state, 16]`: `A`, negative. Channels beyond the last are zero.
    pub a: Span<'a>,
    /// `[channels]`, or filled up to whole tiles of 16.
    pub dt_bias: Span<'a>,
    /// `D`, likewise.
    pub d: Span<'a>,
}

impl MambaSpans<'_> {
    /// Values of a sequence's state: channels filled up to whole tiles of 16, with `n_state` each.
    pub fn state_len(&self) -> usize {
        self.channels.next_multiple_of(LANES) * self.n_state
    }
}

/// What a selective scan reads, row by row.
#[derive(Clone, Copy, Debug)]
pub struct MambaRows<'a> {
    /// Inputs `u`, `[n_rows, channels]`.
    pub u: Span<'a>,
    /// Step sizes before bias and softplus, `[n_rows, channels]`.
    pub dt: Span<'a>,
    /// `B`, `[n_rows, n_state]`.
    pub b: Span<'a>,
    /// `C`, `[n_rows, n_state]`.
    pub c: Span<'a>,
    /// `y` is multiplied by `silu` of these `channels` columns.
    pub gate: ColumnsSpan<'a>,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    parts: u64,
    states: u64,
    u: u64,
    dt: u64,
    b: u64,
    c: u64,
    gate: u64,
    a: u64,
    dt_bias: u64,
    d: u64,
    result: u64,
    n_units: u32,
    channels: u32,
    gate_stride: u32,
    pad: u32,
}

impl Gpu {
    /// Runs `scan` over the rows of `parts` from their states (`[n_slots, scan.state_len()]`), which follow; `out` is
    /// `[n_rows, channels]`.
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn mamba_scan(
        &self,
        scan: &MambaSpans<'_>,
        parts: &[ScanPart],
        states: SpanMut<'_>,
        rows: MambaRows<'_>,
        out: SpanMut<'_>,
    ) {
        let MambaSpans { channels, n_state, .. } = *scan;
        assert!(channels > 0 && (1..=MAX_STATE).contains(&n_state), "mamba: states of {n_state}");
        assert_eq!(count(scan.a.values()) as usize, scan.state_len(), "mamba: A");
        let constants = [scan.dt_bias, scan.d].map(|x| x.values());
        assert!(constants.iter().all(|n| *n >= channels), "mamba: a value for each channel");
        let n_rows = out.values() / channels;
        assert_eq!(count(out.values()) as usize, n_rows * channels, "mamba: length of out");
        assert!(rows.u.len() == out.len() && rows.dt.len() == out.len(), "mamba: u and dt");
        assert_eq!(count(rows.b.values()) as usize, n_rows * n_state, "mamba: B");
        assert_eq!(rows.c.len(), rows.b.len(), "mamba: C");
        let (gate, gate_stride) = rows.gate.place(n_rows, channels, "mamba: gate");
        ScanPart::check(parts, n_rows, states.values() / scan.state_len(), "mamba");

        let (parts, n) = self.upload_parts(parts.iter().copied());
        let n_units = n * channels.div_ceil(COLUMNS);
        let push = Push {
            parts,
            states: states.address(),
            u: rows.u.address(),
            dt: rows.dt.address(),
            b: rows.b.address(),
            c: rows.c.address(),
            gate,
            a: scan.a.address(),
            dt_bias: scan.dt_bias.address(),
            d: scan.d.address(),
            result: out.address(),
            n_units: count(n_units),
            channels: channels as u32,
            gate_stride,
            pad: 0,
        };
        // SAFETY: the kernel reads rows of the inputs and the constants, reads and writes the states of the parts' slots,
        // and writes the parts' rows of `out`: all of them are there (checked), and no two parts have one in common.
        unsafe { self.dispatch(Order::After, &MAMBA, &[n_state as u32], &push, lines(n_units)) };
    }
}

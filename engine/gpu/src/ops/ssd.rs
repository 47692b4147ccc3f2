//! The selective state space of Mamba-2 (SSD, arXiv 2405.21060). There is one decay for each head and token, and each head
//! has a state `[n_state, head_dim]`.

use brigade_shapes::SsdShape;
use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use super::scan::{COLUMNS, ColumnsSpan, ScanPart};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::shader::{Shader, shader};
use crate::span::{Span, SpanMut};

static SSD: Shader = shader!("ssd");

/// Most state values of a channel: B and C of some rows are in shared memory.
const MAX_STATE: usize = 512;

/// The recurrence of one layer. For each token, with `delta = softplus(dt + dt_bias)` and the group
/// `g = h / (n_head / n_group)` of head `h`: `S[n][p] = exp(delta a) S[n][p] + B[g][n] (delta x[p])`, then
/// `y[p] = d x[p] + Σ_n C[g][n] S[n][p]`, `n` in ascending order.
#[derive(Clone, Copy, Debug)]
pub struct SsdSpans<'a> {
    /// Its sizes.
    pub shape: SsdShape,
    /// `[n_head]`: logarithmic decay of a unit of time, negative.
    pub a: Span<'a>,
    /// `[n_head]`: weight of the way past the state.
    pub d: Span<'a>,
    /// `[n_head]`: added to the time step before its softplus.
    pub dt_bias: Span<'a>,
}

/// The operands of a ubatch, columns of `[n_rows, ..]` each.
#[derive(Clone, Copy, Debug)]
pub struct SsdInput<'a> {
    /// `[n_rows, n_head * head_dim]`.
    pub x: ColumnsSpan<'a>,
    /// `[n_rows, n_group * n_state]`.
    pub b: ColumnsSpan<'a>,
    /// `[n_rows, n_group * n_state]`.
    pub c: ColumnsSpan<'a>,
    /// `[n_rows, n_head]`: time steps before bias and softplus.
    pub dt: ColumnsSpan<'a>,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    parts: u64,
    states: u64,
    x: u64,
    b: u64,
    c: u64,
    dt: u64,
    a: u64,
    d: u64,
    dt_bias: u64,
    result: u64,
    n_units: u32,
    n_head: u32,
    heads_per_group: u32,
    strides: [u32; 4],
    pad: u32,
}

impl Gpu {
    /// Runs the recurrence over the rows of `parts`: `out` is `[n_rows, n_head * head_dim]`, `states` is
    /// `[n_slots, shape.state_len()]` and follows.
    ///
    /// # Panics
    /// If shapes disagree, or two parts share a slot.
    pub fn ssd(
        &self,
        ssd: &SsdSpans<'_>,
        parts: &[ScanPart],
        states: SpanMut<'_>,
        input: SsdInput<'_>,
        out: SpanMut<'_>,
    ) {
        let shape = &ssd.shape;
        let SsdShape { n_head, head_dim, n_state, n_group } = *shape;
        assert!(shape.state_len() > 0 && n_group > 0 && n_state <= MAX_STATE, "ssd: {shape:?}");
        assert!(n_head.is_multiple_of(n_group), "ssd: {shape:?}");
        for values in [ssd.a, ssd.d, ssd.dt_bias] {
            assert_eq!(values.values(), n_head, "ssd: a value for each head");
        }
        let n_rows = out.values() / shape.n_inner();
        assert_eq!(count(out.values()) as usize, n_rows * shape.n_inner(), "ssd: length of out");
        let (x, x_stride) = input.x.place(n_rows, shape.n_inner(), "ssd: x");
        let (b, b_stride) = input.b.place(n_rows, n_group * n_state, "ssd: B");
        let (c, c_stride) = input.c.place(n_rows, n_group * n_state, "ssd: C");
        let (dt, dt_stride) = input.dt.place(n_rows, n_head, "ssd: dt");
        count(shape.state_len());
        ScanPart::check(parts, n_rows, states.values() / shape.state_len(), "ssd");

        let (parts, n) = self.upload_parts(parts.iter().copied());
        let n_units = n * n_head * head_dim.div_ceil(COLUMNS);
        let push = Push {
            parts,
            states: states.address(),
            x,
            b,
            c,
            dt,
            a: ssd.a.address(),
            d: ssd.d.address(),
            dt_bias: ssd.dt_bias.address(),
            result: out.address(),
            n_units: count(n_units),
            n_head: n_head as u32,
            heads_per_group: (n_head / n_group) as u32,
            strides: [x_stride, b_stride, c_stride, dt_stride],
            pad: 0,
        };
        let constants = [n_state as u32, head_dim as u32];
        // SAFETY: the kernel reads rows of the inputs and the constants, reads and writes the states of the parts' slots,
        // and writes the parts' rows of `out`: all of them are there (checked), and no two parts have one in common.
        unsafe { self.dispatch(Order::After, &SSD, &constants, &push, lines(n_units)) };
    }
}

//! The selective scan of Mamba-1 ([`MambaScan`]).

use brigade_ops::MambaScan;
use bytemuck::{Pod, Zeroable};

use super::{COLUMNS, ColumnsHere};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::operands::OnGpu;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static MAMBA: Shader = shader!("mamba");

/// Most state values of a channel: B and C of some rows are in shared memory.
const MAX_STATE: usize = 256;

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
    /// Records the op [`MambaScan`].
    ///
    /// # Panics
    /// If shapes disagree, two parts share a slot, or there are more state values than the kernel has room for.
    pub fn mamba_scan(&self, op: MambaScan<'_, OnGpu>) {
        op.check();
        let MambaScan { weights, parts, states, rows, out } = op;
        let (channels, n_state) = (weights.channels, weights.n_state);
        assert!(n_state <= MAX_STATE, "mamba: states of {n_state}");
        let (gate, gate_stride) = rows.gate.place();
        count(out.values());
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
            a: self.vector(&weights.a).address(),
            dt_bias: self.vector(&weights.dt_bias).address(),
            d: self.vector(&weights.d).address(),
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

//! The recurrence of Mamba-2 ([`SsdScan`]).

use brigade_ops::SsdScan;
use brigade_shapes::SsdShape;
use bytemuck::{Pod, Zeroable};

use super::{COLUMNS, ColumnsHere};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::operands::OnGpu;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static SSD: Shader = shader!("ssd");

/// Most state values of a channel: B and C of some rows are in shared memory.
const MAX_STATE: usize = 512;

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
    /// Records the op [`SsdScan`].
    ///
    /// # Panics
    /// If shapes disagree, two parts share a slot, or there are more state values than the kernel has room for.
    pub fn ssd(&self, op: SsdScan<'_, OnGpu>) {
        op.check();
        let SsdScan { ssd, parts, states, input, out } = op;
        let SsdShape { n_head, head_dim, n_state, n_group } = ssd.shape;
        assert!(n_state <= MAX_STATE, "ssd: {:?}", ssd.shape);
        let [x, b, c, dt] = [input.x, input.b, input.c, input.dt].map(|x| x.place());
        count(out.values());
        count(ssd.shape.state_len());
        let (parts, n) = self.upload_parts(parts.iter().copied());
        let n_units = n * n_head * head_dim.div_ceil(COLUMNS);
        let push = Push {
            parts,
            states: states.address(),
            x: x.0,
            b: b.0,
            c: c.0,
            dt: dt.0,
            a: self.vector(&ssd.a).address(),
            d: self.vector(&ssd.d).address(),
            dt_bias: self.vector(&ssd.dt_bias).address(),
            result: out.address(),
            n_units: count(n_units),
            n_head: n_head as u32,
            heads_per_group: (n_head / n_group) as u32,
            strides: [x.1, b.1, c.1, dt.1],
            pad: 0,
        };
        let constants = [n_state as u32, head_dim as u32];
        // SAFETY: the kernel reads rows of the inputs and the constants, reads and writes the states of the parts' slots,
        // and writes the parts' rows of `out`: all of them are there (checked), and no two parts have one in common.
        unsafe { self.dispatch(Order::After, &SSD, &constants, &push, lines(n_units)) };
    }
}

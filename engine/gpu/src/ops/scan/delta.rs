//! The gated delta rule ([`DeltaScan`]).

use brigade_ops::DeltaScan;
use brigade_shapes::{Decay, DeltaShape, KeyHeads};
use bytemuck::{Pod, Zeroable};

use super::{COLUMNS, ColumnsHere};
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::operands::OnGpu;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static DELTA: Shader = shader!("delta");

/// Widest key heads: those of two rows are in shared memory.
const MAX_KEYS: usize = 512;

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
    /// Records the op [`DeltaScan`].
    ///
    /// # Panics
    /// If shapes disagree, two parts share a slot, or keys are wider than the kernel has room for.
    pub fn delta_scan(&self, op: DeltaScan<'_, OnGpu>) {
        op.check();
        let DeltaScan { shape, parts, states, x, out } = op;
        let DeltaShape { n_head, n_key_head, d_k, d_v, .. } = *shape;
        assert!(d_k <= MAX_KEYS, "delta: {shape:?}");
        let all = [x.q, x.k, x.v, x.decay, x.beta].map(|x| x.place());
        let [q, k, v, decay, beta] = all.map(|(address, _)| address);
        count(out.values());
        count(shape.state_len());
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
            strides: all.map(|(_, stride)| stride),
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

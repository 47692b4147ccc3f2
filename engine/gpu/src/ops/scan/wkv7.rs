//! Ops around RWKV-7's recurrence: the preparation of its operands, and the term that is added to its outputs.

use brigade_ops::{Wkv7Bonus, Wkv7Prepare, Wkv7Weights};
use bytemuck::{Pod, Zeroable};

use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::operands::OnGpu;
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static PREPARE: Shader = shader!("wkv7_prepare");
static BONUS: Shader = shader!("wkv7_bonus");

/// Heads of rows that a workgroup takes.
const HEADS: usize = 4;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct PushPrepare {
    rows: [u64; 4],
    weights: [u64; 4],
    n: u32,
    n_heads: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct PushBonus {
    rows: [u64; 3],
    r_k: u64,
    result: u64,
    n: u32,
    n_heads: u32,
}

impl Gpu {
    /// Records the op [`Wkv7Prepare`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn wkv7_prepare(&self, op: Wkv7Prepare<'_, OnGpu>) {
        op.check();
        let Wkv7Prepare { weights: Wkv7Weights { w0, a0, k_k, k_a }, d, w, k, a, kappa } = op;
        let (width, n) = (w0.len(), count(w.values()) as usize);
        let push = PushPrepare {
            rows: [w, k, a, kappa].map(|x| x.address()),
            weights: [w0, a0, k_k, k_a].map(|x| self.vector(x).address()),
            n: (n / d) as u32,
            n_heads: (width / d) as u32,
        };
        let groups = lines((n / d).div_ceil(HEADS));
        // SAFETY: the kernel reads the weights, and reads and writes the `n` values of each of `rows`, which are there
        // (checked).
        unsafe { self.dispatch(Order::After, &PREPARE, &[d as u32], &push, groups) };
    }

    /// Records the op [`Wkv7Bonus`].
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn wkv7_bonus(&self, op: Wkv7Bonus<'_, OnGpu>) {
        op.check();
        let Wkv7Bonus { out, d, rows, r_k } = op;
        let (width, n) = (r_k.len(), count(out.values()) as usize);
        let push = PushBonus {
            rows: [rows.r, rows.k, rows.v].map(|x| x.address()),
            r_k: self.vector(r_k).address(),
            result: out.address(),
            n: (n / d) as u32,
            n_heads: (width / d) as u32,
        };
        let groups = lines((n / d).div_ceil(HEADS));
        // SAFETY: the kernel reads the `n` values of each of `rows` and `r_k`, and reads and writes those of `out`, which
        // are there.
        unsafe { self.dispatch(Order::After, &BONUS, &[d as u32], &push, groups) };
    }
}

//! Rotary positions. The host computes the angles: its table of cosines and sines is copied to the device once for all
//! layers.

use crate::commands::dispatch::Work;
use crate::device::{Gpu, lines};
use crate::operands::OnGpu;
use crate::ops::rowwise::elementwise::count;
use crate::ops::rowwise::joining::{self, ROPE, RopePush};
use brigade_ops::{Angles, Rope};
use brigade_shapes::RopeLayout;

impl Gpu {
    /// Records the op [`Rope`].
    ///
    /// # Panics
    /// If shapes disagree, or `n_rot` is odd or more than a head.
    pub fn rope(&self, op: Rope<'_, OnGpu>) {
        let n_rows = op.check();
        if n_rows == 0 {
            return;
        }
        let Rope { x, head_dim, angles: Angles { by_pair: table, n_rot, layout } } = op;
        let len = x.values();
        let (heads, pairs) = (len / head_dim, n_rot / 2);
        let push = RopePush {
            x: x.address(),
            table: table.address(),
            n: count(heads * pairs),
            pairs: count(pairs),
            heads: count(heads / n_rows),
            head_dim: count(head_dim),
        };
        let (apart, groups) = (layout == RopeLayout::Neox, lines((heads * pairs).div_ceil(256)));
        let work = Work::new(&ROPE, &[u32::from(apart)], &push, groups);
        // SAFETY: the kernel reads and writes pairs of each head of `x`, and reads the row of `table` that there is for each row
        // of heads (checked). The tables of two rotations are read alone.
        unsafe { self.dispatch_joined(&work, |last| joining::rope_beside(last, &work)) };
    }
}

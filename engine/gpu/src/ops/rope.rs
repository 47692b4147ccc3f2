//! Rotary positions. The angles are the host's: its table of cosines and sines is brought here once for all layers.

use super::elementwise::count;
use super::joining::{self, ROPE, RopePush};
use crate::device::{Gpu, lines};
use crate::span::{Span, SpanMut};
use crate::work::Work;
use brigade_shapes::RopeLayout;

impl Gpu {
    /// Rotates the first `n_rot` elements of each head of `x` (`[n_rows, n_heads, head_dim]`) in place, row `r` by row `r` of
    /// `table` (`[n_rows, n_rot]`: the cosines of all pairs, then the sines).
    ///
    /// # Panics
    /// If shapes disagree, or `n_rot` is odd or more than a head.
    pub fn rope(
        &self,
        x: SpanMut<'_>,
        head_dim: usize,
        table: Span<'_>,
        n_rot: usize,
        layout: RopeLayout,
    ) {
        assert!(n_rot <= head_dim && n_rot.is_multiple_of(2), "rope: {n_rot} of {head_dim}");
        if n_rot == 0 || table.is_empty() {
            return;
        }
        let (len, n_rows) = (x.values(), table.values() / n_rot);
        assert!(table.values().is_multiple_of(n_rot), "rope: rows of {n_rot} in the table");
        assert!(
            len.is_multiple_of(n_rows * head_dim),
            "rope: {len} values in {n_rows} rows of heads of {head_dim}"
        );
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

//! The first of the greatest values of each row, or some of the greatest.

use brigade_ops::{FewGreatest, Greatest};
use bytemuck::{Pod, Zeroable};

use super::best_scores::{Best, Line};
use super::elementwise::count;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::SpanMut;
use crate::operands::OnGpu;
use crate::pipelines::shader::{Shader, shader};

static SHADER: Shader = shader!("greatest");

/// Values of a row that a workgroup looks through.
const PIECE: usize = 4096;

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    x: u64,
    result: u64,
    n_units: u32,
    d: u32,
    pieces: u32,
    piece: u32,
}

/// Rows that are looked through, each in pieces.
struct Looked {
    /// Whether they are pairs that an earlier run left, not values.
    pairs: bool,
    /// Address of the rows.
    at: u64,
    n_rows: usize,
    /// Values or pairs of a row.
    d: usize,
    pieces: usize,
}

impl Gpu {
    /// Records the op [`Greatest`].
    ///
    /// # Errors
    /// As [`Gpu::buffer`].
    pub fn greatest(&self, op: Greatest<'_, OnGpu>) -> Result<(), GpuError> {
        op.check();
        let Greatest { x, d, out } = op;
        let (n_rows, pieces) = (x.values() / d, d.div_ceil(PIECE));
        let mut of_pieces = self.buffer(8 * n_rows * pieces, Purpose::Activations)?;
        let values = Looked { pairs: false, at: x.address(), n_rows, d, pieces };
        self.greatest_of(values, of_pieces.span_mut());
        let at = of_pieces.span().address();
        self.greatest_of(Looked { pairs: true, at, n_rows, d: pieces, pieces: 1 }, out);
        Ok(())
    }

    /// Records the op [`FewGreatest`].
    pub fn greatest_few(&self, op: FewGreatest<'_, OnGpu>) {
        op.check();
        let FewGreatest { x, d, k, out } = op;
        let best = Best {
            wanted: k,
            n_behind: 0,
            copies: 2,
            of_floats: true,
            as_floats: false,
            with_scores: true,
        };
        let line = |row: usize| Line { n: count(d), row: count(row), behind: 0 };
        let all: Vec<Line> = (0..x.values() / d).map(line).collect();
        self.best(best, &all, x, d, out);
    }

    /// The greatest of each piece of the rows.
    fn greatest_of(&self, rows: Looked, to: SpanMut<'_>) {
        let Looked { pairs, at, n_rows, d, pieces } = rows;
        let push = Push {
            x: at,
            result: to.address(),
            n_units: count(n_rows * pieces),
            d: count(d),
            pieces: count(pieces),
            piece: count(d.div_ceil(pieces.max(1))),
        };
        let groups = lines(n_rows * pieces);
        // SAFETY: the kernel reads the rows at `at`, `d` values or pairs each, which the callers have, and writes a pair of `to` for
        // each piece, for which there is room.
        unsafe { self.dispatch(Order::After, &SHADER, &[u32::from(pairs)], &push, groups) };
    }
}

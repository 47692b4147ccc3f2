//! The greatest scores of lines.

use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::{Span, SpanMut};
use crate::pipelines::shader::{Shader, shader};

static BEST: Shader = shader!("choose_best");

/// Bytes of the scores that are kept at once, about.
const SCORE_BYTES: usize = 64 << 20;

/// Most lines of scores that are kept at once: enough to fill a device.
const MAX_LINES: usize = 1024;

/// Most numbers that stand behind the places of a line: an invocation of its workgroup writes each.
const MAX_BEHIND: usize = 256;

/// Scores of a line, of which the greatest are found.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(crate) struct Line {
    /// Number of scores in a line, no fewer than are wanted.
    pub(crate) n: u32,
    /// The row of the result that is the line's.
    pub(crate) row: u32,
    /// First of the ascending numbers that stand behind the places.
    pub(crate) behind: u32,
}

/// Number and layout of the results for each line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Best {
    /// Number of places that are wanted.
    pub(crate) wanted: usize,
    /// Number of values behind them.
    pub(crate) n_behind: usize,
    /// Number of copies of each row of the result.
    pub(crate) copies: usize,
    /// Whether scores are f32; else they are u32.
    pub(crate) of_floats: bool,
    /// Whether places are written as f32; else as u32.
    pub(crate) as_floats: bool,
    /// Whether the second of two copies has the scores.
    pub(crate) with_scores: bool,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    lines: u64,
    scores: u64,
    result: u64,
    n_units: u32,
    stride: u32,
    wanted: u32,
    n_behind: u32,
    copies: u32,
    pad: u32,
}

/// Number of the `n` units of work, each with `lines` lines of `stride` scores, that are done at once.
pub(crate) fn at_once(n: usize, lines: usize, stride: usize) -> usize {
    ((SCORE_BYTES / (4 * stride)).min(MAX_LINES) / lines).clamp(1, n)
}

impl Gpu {
    /// Writes the places of each line's greatest scores (`[lines, stride]`), ascending, to its row of `out` (`[rows,
    /// copies, wanted + n_behind]`). If scores are equal, the earlier ones are taken; both zeros are equal. Other
    /// rows stay as they are.
    ///
    /// # Panics
    /// If a line has fewer scores than are wanted or more than `stride`, or shapes disagree.
    pub(crate) fn best(
        &self,
        best: Best,
        all: &[Line],
        scores: Span<'_>,
        stride: usize,
        out: SpanMut<'_>,
    ) {
        let Best { wanted, n_behind, copies, .. } = best;
        let row = copies * (wanted + n_behind);
        assert!(row > 0 && n_behind <= MAX_BEHIND, "best: {best:?}");
        let n_rows = count(out.values()) as usize / row;
        let fits = |line: &Line| (wanted..=stride).contains(&(line.n as usize));
        assert!(all.iter().all(fits), "best: lengths of lines");
        assert!(all.iter().all(|line| (line.row as usize) < n_rows), "best: rows");
        assert!(count(scores.values()) as usize >= all.len() * stride, "best: scores");
        let push = Push {
            lines: self.upload(bytemuck::cast_slice(all)).address(),
            scores: scores.address(),
            result: out.address(),
            n_units: count(all.len()),
            stride: count(stride),
            wanted: count(wanted),
            n_behind: count(n_behind),
            copies: count(copies),
            pad: 0,
        };
        let constants = [best.of_floats, best.as_floats, best.with_scores].map(u32::from);
        // SAFETY: the kernel reads the lines of scores and writes their rows of `out`, which are there (checked): as many
        // places as are wanted, since a line has as many scores.
        unsafe { self.dispatch(Order::After, &BEST, &constants, &push, lines(all.len())) };
    }
}

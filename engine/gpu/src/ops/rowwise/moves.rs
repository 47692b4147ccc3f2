//! Ops that only move values: copies, columns, rows by a list. Values are any 32 bits.

use brigade_ops::{AddPicked, HalvesToPairs, HeadColumns};
use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::error::GpuError;
use crate::memory::Purpose;
use crate::memory::span::{Span, SpanMut};
use crate::operands::OnGpu;
use crate::pipelines::shader::{Shader, shader};

static MOVES: Shader = shader!("moves");

/// Operations of the shader, by their numbers there.
#[derive(Clone, Copy)]
enum Kind {
    Places = 0,
    Listed = 1,
    Fill = 2,
}

#[repr(C)]
#[derive(Clone, Copy, Default, Pod, Zeroable)]
struct Push {
    from: u64,
    list: u64,
    to: u64,
    n: u32,
    width: u32,
    inner: u32,
    from_group: u32,
    from_row: u32,
    to_group: u32,
    to_row: u32,
    last: u32,
}

impl Gpu {
    /// `x = value`.
    pub fn fill(&self, x: SpanMut<'_>, value: f32) {
        let n = x.values();
        let (to, last) = (x.address(), value.to_bits());
        let push = Push { to, last, ..rows(n, n.max(1)) };
        // SAFETY: the kernel writes the `n` values of `x`, as one row.
        unsafe { self.moved(Kind::Fill, &push) };
    }

    /// Writes one value to columns of `to` (`[n, columns.stride]`), whose other columns stay as they are.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn fill_columns(&self, to: SpanMut<'_>, columns: HeadColumns, value: f32) {
        let HeadColumns { stride, width, .. } = columns;
        let n = to.values() / stride * width;
        let push = Push {
            to: first_of(columns, to.values(), 1, n) + to.address(),
            to_row: count(stride),
            last: value.to_bits(),
            ..rows(n, width)
        };
        // SAFETY: the kernel writes the columns of every row of `to` (checked).
        unsafe { self.moved(Kind::Fill, &push) };
    }

    /// `to = from`.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn copy(&self, from: Span<'_>, to: SpanMut<'_>) {
        let n = to.values();
        assert_eq!(from.values(), n, "copy: lengths");
        let push = Push { from: from.address(), to: to.address(), ..rows(n, n.max(1)) };
        // SAFETY: the kernel reads the `n` values of `from` and writes those of `to`, as one row.
        unsafe { self.moved(Kind::Places, &push) };
    }

    /// Takes `columns` of `from[n, n_head, stride]`, head by head, to `to[n_head, n, width]`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn heads_apart(
        &self,
        from: Span<'_>,
        n_head: usize,
        columns: HeadColumns,
        to: SpanMut<'_>,
    ) {
        let HeadColumns { stride, width, .. } = columns;
        let first = first_of(columns, from.values(), n_head, to.values());
        let n = to.values() / (n_head * width);
        let push = Push {
            from: from.address() + first,
            to: to.address(),
            inner: count(n.max(1)),
            from_group: count(stride),
            from_row: count(n_head * stride),
            to_group: count(n * width),
            to_row: width as u32,
            ..rows(to.values(), width)
        };
        // SAFETY: the kernel reads columns of every head of every row of `from`, and writes as many rows of `to` (checked).
        unsafe { self.moved(Kind::Places, &push) };
    }

    /// The way back of [`Gpu::heads_apart`]: `from[n_head, n, width]` to `columns` of `to[n, n_head, stride]`, whose other
    /// columns stay as they are.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn heads_together(
        &self,
        from: Span<'_>,
        n_head: usize,
        columns: HeadColumns,
        to: SpanMut<'_>,
    ) {
        let HeadColumns { stride, width, .. } = columns;
        let first = first_of(columns, to.values(), n_head, from.values());
        let n = from.values() / (n_head * width);
        let push = Push {
            from: from.address(),
            to: to.address() + first,
            inner: count(n.max(1)),
            from_group: count(n * width),
            from_row: width as u32,
            to_group: count(stride),
            to_row: count(n_head * stride),
            ..rows(from.values(), width)
        };
        // SAFETY: the kernel reads the rows of `from`, and writes columns of every head of as many rows of `to` (checked).
        unsafe { self.moved(Kind::Places, &push) };
    }

    /// Rows of `from` (`[_, d]`) that `list` (u32) names, in its order: `to` is `[list.values(), d]`. A number beyond the rows
    /// names the last.
    ///
    /// # Panics
    /// If shapes disagree, or there is no row to name.
    pub fn gather_rows(&self, from: Span<'_>, d: usize, list: Span<'_>, to: SpanMut<'_>) {
        let (there, n) = (from.values(), to.values());
        assert!(d > 0 && there >= d && there.is_multiple_of(d), "gather_rows: {there} of {d}");
        assert_eq!(n, list.values() * d, "gather_rows: a row for each number");
        let push = Push {
            from: from.address(),
            list: list.address(),
            to: to.address(),
            from_row: count(d),
            to_row: count(d),
            last: count(there / d - 1),
            ..rows(n, d)
        };
        // SAFETY: the kernel reads as many numbers as `to` has rows, and those rows of `from` or its last; it writes `to`.
        unsafe { self.moved(Kind::Listed, &push) };
    }

    /// See [`AddPicked`]: a number beyond the rows names the last.
    pub(crate) fn add_picked(&self, op: AddPicked<'_, OnGpu>) -> Result<(), GpuError> {
        op.check();
        let mut rows = self.buffer(op.out.len(), Purpose::Activations)?;
        self.gather_rows(op.table, op.d, op.picked, rows.span_mut());
        self.add(op.out, rows.span());
        Ok(())
    }

    /// Records the op [`HalvesToPairs`].
    pub(crate) fn halves_to_pairs(&self, op: HalvesToPairs<'_, OnGpu>) -> Result<(), GpuError> {
        op.check();
        let half = op.d / 2;
        let mut apart = self.buffer(op.x.len(), Purpose::Activations)?;
        let halves = HeadColumns { stride: half, first: 0, width: half };
        self.heads_apart(op.x.as_span(), 2, halves, apart.span_mut());
        let single = HeadColumns { stride: 1, first: 0, width: 1 };
        self.heads_together(apart.span(), 2, single, op.x);
        Ok(())
    }

    /// Writes `row` to every row of `to`.
    ///
    /// # Panics
    /// If `to` is not whole rows.
    pub fn repeat_row(&self, row: Span<'_>, to: SpanMut<'_>) {
        let (d, n) = (row.values(), to.values());
        assert!(d > 0 && n.is_multiple_of(d), "repeat_row: {n} in rows of {d}");
        let push = Push { from: row.address(), to: to.address(), to_row: count(d), ..rows(n, d) };
        // SAFETY: the kernel reads `row`, and writes the rows of `to`, which are whole (checked).
        unsafe { self.moved(Kind::Places, &push) };
    }

    /// Writes each row of `from` (`[n, d]`) `times` times, one after the other: `to` is `[n * times, d]`.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn repeat_rows(&self, from: Span<'_>, d: usize, times: usize, to: SpanMut<'_>) {
        let (n, there) = (to.values(), from.values());
        assert!(d > 0 && times > 0 && there.is_multiple_of(d), "repeat_rows: rows of {d}");
        assert_eq!(n, there * times, "repeat_rows: each row {times} times");
        let push = Push {
            from: from.address(),
            to: to.address(),
            inner: count(times),
            from_group: count(d),
            to_group: count(times * d),
            to_row: count(d),
            ..rows(n, d)
        };
        // SAFETY: the kernel reads the rows of `from`, and writes as many times as many rows of `to` (checked).
        unsafe { self.moved(Kind::Places, &push) };
    }

    /// # Safety
    /// As [`Gpu::dispatch`].
    unsafe fn moved(&self, kind: Kind, push: &Push) {
        let groups = lines((push.n as usize).div_ceil(256));
        // SAFETY: promised by the caller.
        unsafe { self.dispatch(Order::After, &MOVES, &[kind as u32], push, groups) };
    }
}

/// `n` values in rows of `width`, all in one group.
fn rows(n: usize, width: usize) -> Push {
    Push { n: count(n), width: count(width), inner: 1 << 31, ..Push::default() }
}

/// Checks so many values in rows of so many heads beside those of their columns. Returns how far the first column is from the start
/// of a row, in bytes.
fn first_of(columns: HeadColumns, together: usize, n_head: usize, apart: usize) -> u64 {
    columns.check(together, n_head, apart);
    4 * columns.first as u64
}

//! Adds up what experts gave for each row, and to that what each of them always adds, or what adapters add for some pairs.

use bytemuck::{Pod, Zeroable};

use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::{Span, SpanMut};
use crate::ops::rowwise::elementwise::count;
use crate::pipelines::shader::{Shader, shader};

static SHADER: Shader = shader!("scatter_add");
static LISTED: Shader = shader!("add_listed_rows");
static TO_LISTED: Shader = shader!("add_to_listed");

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    x: u64,
    pairs: u64,
    weights: u64,
    result: u64,
    n: u32,
    d: u32,
    used: u32,
    last: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ListedPush {
    table: u64,
    list: u64,
    result: u64,
    n: u32,
    d: u32,
    last: u32,
    pad: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct ToListedPush {
    x: u64,
    list: u64,
    result: u64,
    n: u32,
    d: u32,
    last: u32,
    factor: f32,
}

impl Gpu {
    /// Adds to each row of `out` (`[list.values(), d]`) the row of `table` (`[_, d]`) that `list` (u32) names for it. A number
    /// beyond the rows names the last.
    ///
    /// # Panics
    /// If shapes disagree, or there is no row to name.
    pub fn add_listed_rows(&self, out: SpanMut<'_>, d: usize, table: Span<'_>, list: Span<'_>) {
        let (n, there) = (out.values(), table.values());
        assert!(d > 0 && there >= d && there.is_multiple_of(d), "add_listed_rows: {there} of {d}");
        assert_eq!(n, list.values() * d, "add_listed_rows: a row for each number");
        let push = ListedPush {
            table: table.address(),
            list: list.address(),
            result: out.address(),
            n: count(n),
            d: count(d),
            last: count(there / d - 1),
            pad: 0,
        };
        // SAFETY: the kernel reads as many numbers as `out` has rows, and those rows of `table` or its last; it reads and
        // writes the `n` values of `out`.
        unsafe { self.dispatch(Order::After, &LISTED, &[], &push, lines(n.div_ceil(256))) };
    }

    /// Adds each row of `x` (`[list.values(), d]`) times `factor` to the row of `out` (`[_, d]`) that `list` (u32) names for it:
    /// `out[list[r]] += x[r] * factor`. No row is named twice. A number beyond the rows names the last.
    ///
    /// # Panics
    /// If shapes disagree, or there is no row to name.
    pub fn add_to_listed(
        &self,
        out: SpanMut<'_>,
        d: usize,
        x: Span<'_>,
        list: Span<'_>,
        factor: f32,
    ) {
        let (n, there) = (x.values(), out.values());
        assert!(d > 0 && there >= d && there.is_multiple_of(d), "add_to_listed: {there} of {d}");
        assert_eq!(n, list.values() * d, "add_to_listed: a row for each number");
        let push = ToListedPush {
            x: x.address(),
            list: list.address(),
            result: out.address(),
            n: count(n),
            d: count(d),
            last: count(there / d - 1),
            factor,
        };
        // SAFETY: the kernel reads the `n` values of `x` and as many numbers as it has rows (checked); it reads and writes those
        // rows of `out` or its last.
        unsafe { self.dispatch(Order::After, &TO_LISTED, &[], &push, lines(n.div_ceil(256))) };
    }

    /// Adds to each row of `out` (`[n, d]`) rows of `x` (`[n_pairs, d]`), one after the other: `out[r] += weights[r, k] * x[pairs[r, k]]`
    /// for `k` from 0 on. `pairs` (u32) and `weights` are `[n, n_used]`. A number beyond the pairs names the last.
    ///
    /// # Panics
    /// If shapes disagree.
    pub fn scatter_add(
        &self,
        out: SpanMut<'_>,
        d: usize,
        x: Span<'_>,
        pairs: Span<'_>,
        weights: Span<'_>,
    ) {
        let (n, there) = (out.values(), x.values());
        assert!(
            d > 0 && n.is_multiple_of(d) && there.is_multiple_of(d),
            "scatter_add: rows of {d}"
        );
        assert_eq!(pairs.values(), weights.values(), "scatter_add: pairs and weights");
        if n == 0 || pairs.is_empty() {
            return;
        }
        let (rows, picks) = (n / d, pairs.values());
        assert!(there > 0 && picks.is_multiple_of(rows), "scatter_add: {picks} in {rows} rows");
        let push = Push {
            x: x.address(),
            pairs: pairs.address(),
            weights: weights.address(),
            result: out.address(),
            n: count(n),
            d: count(d),
            used: count(picks / rows),
            last: count(there / d - 1),
        };
        // SAFETY: the kernel reads as many pairs and weights for each row as there are (checked), and those rows of `x` or its
        // last; it reads and writes the `n` values of `out`.
        unsafe { self.dispatch(Order::After, &SHADER, &[], &push, lines(n.div_ceil(256))) };
    }
}

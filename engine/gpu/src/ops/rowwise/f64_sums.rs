//! Functions of rows with sums in f64. Not every device has that: [`GpuFacts::float64`](crate::GpuFacts::float64) says it.

use brigade_ops::ProductRoots;
use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::{Span, SpanMut};
use crate::operands::OnGpu;
use crate::pipelines::shader::{Shader, shader};

static SHADER: Shader = shader!("wide_rows");

/// Operations on a row, by their numbers in the shader.
#[derive(Clone, Copy)]
enum Kind {
    Match = 0,
    Above = 1,
    Root = 2,
}

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    x: u64,
    y: u64,
    result: u64,
    n: u32,
    d: u32,
    a: f32,
    b: f32,
}

impl Gpu {
    /// Gives each row of `x` (`[n, d]`) the magnitude of that of `like`: `x * |like| / |x|`, magnitudes summed in f64 and rounded
    /// to f32.
    ///
    /// # Panics
    /// If shapes disagree, or the device has no f64.
    pub fn match_magnitudes(&self, x: SpanMut<'_>, like: Span<'_>, d: usize) {
        assert_eq!(x.len(), like.len(), "match_magnitudes: lengths");
        let n = rows_of(x.values(), d, "match_magnitudes");
        let (from, result) = (x.as_span().address(), x.address());
        let push = Push { x: from, y: like.address(), result, n, d: count(d), a: 0.0, b: 0.0 };
        // SAFETY: the kernel reads the rows of both, which are as many (checked), and writes those of `x`.
        unsafe { self.wide_rows(Kind::Match, &push) };
    }

    /// Takes off each value of rows `x` (`[n, d]`) the row's mean and so many of its standard deviations, both in f64; what is
    /// below 0 then becomes 0.
    ///
    /// # Panics
    /// If shapes disagree, `d` is below 2, or the device has no f64.
    pub fn keep_above(&self, x: SpanMut<'_>, d: usize, deviations: f32) {
        assert!(d > 1, "keep_above: the deviation of {d} values");
        let n = rows_of(x.values(), d, "keep_above");
        let (from, result) = (x.as_span().address(), x.address());
        let push = Push { x: from, y: from, result, n, d: count(d), a: deviations, b: 0.0 };
        // SAFETY: the kernel reads and writes the rows of `x`.
        unsafe { self.wide_rows(Kind::Above, &push) };
    }

    /// Records the op [`ProductRoots`].
    ///
    /// # Panics
    /// If shapes disagree, or the device has no f64.
    pub fn product_roots(&self, op: ProductRoots<'_, OnGpu>) {
        let ProductRoots { x, y, d, divisor, least, out } = op;
        assert_eq!(x.len(), y.len(), "product_roots: lengths");
        let n = rows_of(x.values(), d, "product_roots");
        assert_eq!(out.values(), n as usize, "product_roots: a value for each row");
        let (a, b, d) = (divisor, least, count(d));
        let push = Push { x: x.address(), y: y.address(), result: out.address(), n, d, a, b };
        // SAFETY: the kernel reads the rows of both, which are as many (checked), and writes a value of `out` for each.
        unsafe { self.wide_rows(Kind::Root, &push) };
    }

    /// # Safety
    /// As [`Gpu::dispatch`].
    unsafe fn wide_rows(&self, kind: Kind, push: &Push) {
        assert!(self.facts().float64, "{} has no f64", self.facts().name);
        let groups = lines(push.n as usize);
        // SAFETY: promised by the caller.
        unsafe { self.dispatch(Order::After, &SHADER, &[kind as u32], push, groups) };
    }
}

/// Number of rows of `d` values each.
fn rows_of(n: usize, d: usize, op: &str) -> u32 {
    assert!(d > 0 && n.is_multiple_of(d), "{op}: {n} values in rows of {d}");
    count(n) / count(d)
}

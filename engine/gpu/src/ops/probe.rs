//! The functions of `numbers.glsl` one by one, for tests.

use bytemuck::{Pod, Zeroable};

use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::memory::span::{Span, SpanMut};
use crate::pipelines::shader::{Shader, shader};

static SHADER: Shader = shader!("probe_numbers");

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    a: u64,
    b: u64,
    y: u64,
    n: u32,
    pad: u32,
}

impl Gpu {
    /// Applies function number `function` of the shader to each pair of words of `a` and `b`.
    #[doc(hidden)]
    pub fn probe_numbers(&self, function: u32, a: Span<'_>, b: Span<'_>, y: SpanMut<'_>) {
        let n = y.values();
        assert!(a.values() == n && b.values() == n, "probe_numbers: lengths");
        let push = Push { a: a.address(), b: b.address(), y: y.address(), n: n as u32, pad: 0 };
        // SAFETY: the kernel reads the `n` words of `a` and `b`, and writes those of `y`.
        unsafe { self.dispatch(Order::After, &SHADER, &[function], &push, lines(n.div_ceil(64))) };
    }
}

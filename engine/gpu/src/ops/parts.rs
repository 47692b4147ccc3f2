//! Copies of runs of values between places of any distance.

use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::shader::{Shader, shader};
use crate::span::{Span, SpanMut};

static COPY: Shader = shader!("copy_parts");

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Push {
    from: u64,
    to: u64,
    places: u64,
    n: u32,
    width: u32,
}

impl Gpu {
    /// Copies `width` values for each of `places`: those from the first number on of `from` to those from the second on of
    /// `to`. No value is written twice.
    ///
    /// # Panics
    /// If a place lies outside.
    pub fn copy_parts(&self, from: Span<'_>, to: SpanMut<'_>, width: usize, places: &[[usize; 2]]) {
        let (n_from, n_to) = (from.values(), to.values());
        let inside = |[from, to]: &[usize; 2]| from + width <= n_from && to + width <= n_to;
        assert!(places.iter().all(inside), "copy_parts: places of {n_from} and {n_to} values");
        if places.is_empty() || width == 0 {
            return;
        }
        let numbers: Vec<[u32; 2]> = places.iter().map(|place| place.map(count)).collect();
        let push = Push {
            from: from.address(),
            to: to.address(),
            places: self.upload(bytemuck::cast_slice(&numbers)).address(),
            n: count(places.len() * width),
            width: count(width),
        };
        let groups = lines((places.len() * width).div_ceil(64));
        // SAFETY: the kernel reads `width` values at each first place and writes as many at each second, which are there
        // (checked).
        unsafe { self.dispatch(Order::After, &COPY, &[], &push, groups) };
    }
}

//! Copies of runs of values between places of any distance.

use brigade_ops::CopyParts;
use bytemuck::{Pod, Zeroable};

use super::elementwise::count;
use crate::commands::Order;
use crate::device::{Gpu, lines};
use crate::operands::OnGpu;
use crate::pipelines::shader::{Shader, shader};

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
    /// Records the op [`CopyParts`].
    ///
    /// # Panics
    /// If a place lies outside.
    pub fn copy_parts(&self, op: CopyParts<'_, OnGpu>) {
        op.check();
        let CopyParts { from, to, width, places } = op;
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

//! Where the operands of an op lie. An operand is written once, over its place: kernels see slices, a device sees its own
//! memory, and whoever calls an op does not know which of both it is.

use bytemuck::Pod;

use crate::view::{View, ViewMut};

/// What operands are made of: `f32`, `u32`, `u8`.
pub trait Element: Pod + std::fmt::Debug {}

impl<T: Pod + std::fmt::Debug> Element for T {}

/// Where values lie, and how an op sees them there.
pub trait Place: Copy + std::fmt::Debug + 'static {
    /// Values that an op reads.
    type Read<'a, T: Element>: Copy + std::fmt::Debug;

    /// Values that an op writes, and may read before.
    type Write<'a, T: Element>;

    /// How many values are read.
    fn len<T: Element>(values: &Self::Read<'_, T>) -> usize;

    /// How many values are written.
    fn len_mut<T: Element>(values: &Self::Write<'_, T>) -> usize;
}

/// The host's memory: operands are slices.
#[derive(Clone, Copy, Debug)]
pub struct Host;

impl Place for Host {
    type Read<'a, T: Element> = &'a [T];
    type Write<'a, T: Element> = &'a mut [T];

    #[inline]
    fn len<T: Element>(values: &&[T]) -> usize {
        values.len()
    }

    #[inline]
    fn len_mut<T: Element>(values: &&mut [T]) -> usize {
        values.len()
    }
}

/// The host's memory or a device's, as whoever calls an op has it.
#[derive(Clone, Copy, Debug)]
pub struct Anywhere;

impl Place for Anywhere {
    type Read<'a, T: Element> = View<'a, T>;
    type Write<'a, T: Element> = ViewMut<'a, T>;

    fn len<T: Element>(values: &View<'_, T>) -> usize {
        values.len()
    }

    fn len_mut<T: Element>(values: &ViewMut<'_, T>) -> usize {
        values.len()
    }
}

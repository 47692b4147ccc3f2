//! The memory in which the operands of an op lie. An op's operands are declared once for all places: kernels see
//! slices, a device sees its own memory, and the caller of an op need not know which of the two it is.

use bytemuck::Pod;

use crate::view::{View, ViewMut};

/// Types of the values in operands: `f32`, `u32` and `u8`.
pub trait Element: Pod + std::fmt::Debug {}

impl<T: Pod + std::fmt::Debug> Element for T {}

/// A kind of memory, with the types by which an op sees values there.
pub trait Place: Copy + std::fmt::Debug + 'static {
    /// Values that an op reads.
    type Read<'a, T: Element>: Copy + std::fmt::Debug;

    /// Values that an op writes, and may read before.
    type Write<'a, T: Element>;

    /// Number of values that are read.
    fn len<T: Element>(values: &Self::Read<'_, T>) -> usize;

    /// Number of values that are written.
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

/// The host's memory or a device's, whichever the caller of an op has.
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

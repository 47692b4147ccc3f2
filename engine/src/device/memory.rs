//! Memory for states, straight from the system and straight back to it.
//!
//! A stage reserves pages and slots for the most that it may be asked for, and uses a part of them. Pages
//! from the system are zero, and cost nothing before they are touched. An allocator would hand out memory
//! that was used before, and would have to write zeros over all of it. The second stage of a process would
//! then take seconds to load, and would hold all the memory that it only reserves.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// A fixed number of values, zero at first, from a page's start.
pub struct Memory<T> {
    /// `None` where there are no values.
    map: Option<MmapMut>,
    values: PhantomData<T>,
}

impl<T: bytemuck::Pod> Memory<T> {
    /// `len` zero values; `None` where the system has no such memory.
    pub(super) fn new(len: usize) -> Option<Self> {
        let nbytes = len.checked_mul(size_of::<T>())?;
        let map = if nbytes == 0 { None } else { Some(MmapMut::map_anon(nbytes).ok()?) };
        Some(Self { map, values: PhantomData })
    }
}

impl<T: bytemuck::Pod> Deref for Memory<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        self.map.as_deref().map_or(&[], bytemuck::cast_slice)
    }
}

impl<T: bytemuck::Pod> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.map.as_deref_mut().map_or(&mut [], bytemuck::cast_slice_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_zero_and_as_many_as_asked_for() {
        let mut values = Memory::<f32>::new(1025).unwrap();
        assert_eq!((values.len(), values.iter().copied().fold(0.0, f32::max)), (1025, 0.0));
        values[1024] = 1.0;
        assert_eq!(values[1024], 1.0);
        assert!(Memory::<f32>::new(0).unwrap().is_empty());
        assert!(Memory::<f32>::new(usize::MAX / 2).is_none());
    }
}

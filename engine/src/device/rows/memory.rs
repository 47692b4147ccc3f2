//! Memory for states, straight from the system and straight back to it.
//!
//! A stage reserves pages and slots for the most that it may be asked for, and uses a part of them. Pages
//! from the system are zero, and cost nothing before they are touched. An allocator would hand out memory
//! that was used before, and would have to write zeros over all of it. The second stage of a process would
//! then take seconds to load, and would hold all the memory that it only reserves.
//!
//! States of a stage on a device lie with that. The host sees them through copies only.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Range;

use memmap2::MmapMut;

use super::store::THERE;
use crate::device::accelerator::{There, first, first_mut};
use crate::device::give_up;
use crate::ops::{Buffer, CopySlot, Element, Function, Map, PartMut, Purpose, View, ViewMut};

/// A fixed number of values, zero at first, from a page's start.
pub struct Memory<T> {
    place: Place,
    values: PhantomData<T>,
}

enum Place {
    /// There are no values.
    Nowhere,
    Host(MmapMut),
    There(There, Box<dyn Buffer>),
}

impl<T: Element> Memory<T> {
    /// `len` zero values, with a device if there is one; `None` where there is no such memory.
    pub(crate) fn new(there: Option<&There>, len: usize) -> Option<Self> {
        let nbytes = len.checked_mul(size_of::<T>())?;
        let place = match there {
            _ if nbytes == 0 => Place::Nowhere,
            None => Place::Host(MmapMut::map_anon(nbytes).ok()?),
            Some(there) => match there.alloc(nbytes, Purpose::States) {
                Ok(buffer) => Place::There(there.clone(), buffer),
                Err(reason) => {
                    tracing::error!(%reason, "no memory for states");
                    return None;
                }
            },
        };
        Some(Self { place, values: PhantomData })
    }

    /// The values, as ops read them.
    pub fn view(&self) -> View<'_, T> {
        match &self.place {
            Place::Nowhere | Place::Host(_) => View::Host(self.host()),
            Place::There(_, buffer) => View::Device(first(&**buffer, buffer.len())),
        }
    }

    /// The values, as ops write them.
    pub fn view_mut(&mut self) -> ViewMut<'_, T> {
        match &mut self.place {
            Place::Nowhere => ViewMut::Host(&mut []),
            Place::Host(map) => ViewMut::Host(bytemuck::cast_slice_mut(map)),
            Place::There(_, buffer) => {
                let len = buffer.len();
                ViewMut::Device(first_mut(&mut **buffer, len))
            }
        }
    }

    /// Whether a device has the values.
    pub fn is_there(&self) -> bool {
        matches!(self.place, Place::There(..))
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        let nbytes = match &self.place {
            Place::Nowhere => 0,
            Place::Host(map) => map.len(),
            Place::There(_, buffer) => buffer.len(),
        };
        nbytes / size_of::<T>()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The values, which lie with the host.
    ///
    /// # Panics
    /// If they lie with a device: [`Memory::read`] brings them.
    pub fn host(&self) -> &[T] {
        match &self.place {
            Place::Nowhere => &[],
            Place::Host(map) => bytemuck::cast_slice(map),
            Place::There(..) => panic!("{THERE}"),
        }
    }

    /// The values, which lie with the host, to be written there.
    ///
    /// # Panics
    /// If they lie with a device: [`Memory::write`] brings others.
    pub fn host_mut(&mut self) -> &mut [T] {
        match &mut self.place {
            Place::Nowhere => &mut [],
            Place::Host(map) => bytemuck::cast_slice_mut(map),
            Place::There(..) => panic!("{THERE}"),
        }
    }

    /// Some values, wherever they lie. Where they lie with a device this waits for it; if that fails now they are anything, which
    /// [`Device::finish`](crate::device::Device::finish) tells.
    ///
    /// # Panics
    /// If the range ends beyond them. If the device failed before or has no room for a copy, with [`GaveUp`](crate::device::GaveUp).
    pub fn read(&self, range: Range<usize>) -> Cow<'_, [T]> {
        let Place::There(_, buffer) = &self.place else {
            return Cow::Borrowed(&self.host()[range]);
        };
        let range = bytes_of::<T>(range);
        let mut bytes = Vec::with_capacity(range.len());
        if let Err(error) = buffer.read(range, &mut bytes) {
            give_up("a copy of states", &error);
        }
        Cow::Owned(bytemuck::pod_collect_to_vec(&bytes))
    }

    /// Writes values from `at` on, wherever they lie.
    ///
    /// # Panics
    /// If they end beyond those that there are.
    pub fn write(&mut self, at: usize, values: &[T]) {
        match &mut self.place {
            Place::There(_, buffer) => {
                buffer.write(at * size_of::<T>(), bytemuck::cast_slice(values))
            }
            _ => self.host_mut()[at..][..values.len()].copy_from_slice(values),
        }
    }

    /// Makes some values zero, wherever they lie.
    ///
    /// # Panics
    /// If the range ends beyond them, or with a device, where it is not of whole f32.
    pub fn clear(&mut self, range: Range<usize>) {
        match &mut self.place {
            Place::There(there, buffer) => {
                let x = ViewMut::<f32>::Device(PartMut::of(&mut **buffer, bytes_of::<T>(range)));
                there.do_now(Map { x, with: Function::Constant(0.0) });
            }
            _ => self.host_mut()[range].fill(T::zeroed()),
        }
    }

    /// Copies part `from` to part `to`; parts have `n` values each.
    ///
    /// # Panics
    /// As [`Memory::clear`].
    pub fn copy_part(&mut self, n: usize, from: usize, to: usize) {
        match &mut self.place {
            Place::There(there, buffer) => {
                let (len, per_slot) = (buffer.len(), n * size_of::<T>() / size_of::<f32>());
                let slots = ViewMut::Device(first_mut(&mut **buffer, len));
                there.do_now(CopySlot { slots, per_slot, from, to });
            }
            _ => self.host_mut().copy_within(from * n..(from + 1) * n, to * n),
        }
    }
}

fn bytes_of<T>(values: Range<usize>) -> Range<usize> {
    values.start * size_of::<T>()..values.end * size_of::<T>()
}

/// For tests, which look at states wherever they lie.
#[cfg(test)]
impl<T: bytemuck::Pod> std::ops::Deref for Memory<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &self.place {
            Place::Nowhere => &[],
            Place::Host(map) => bytemuck::cast_slice(map),
            Place::There(_, buffer) => bytemuck::cast_slice(super::store::seen(&**buffer)),
        }
    }
}

#[cfg(test)]
impl<T: bytemuck::Pod> std::ops::DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.place {
            Place::Nowhere => &mut [],
            Place::Host(map) => bytemuck::cast_slice_mut(map),
            Place::There(_, buffer) => {
                bytemuck::cast_slice_mut(super::store::seen_mut(&mut **buffer))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_zero_and_as_many_as_asked_for() {
        let mut values = Memory::<f32>::new(None, 1025).unwrap();
        assert_eq!((values.len(), values.iter().copied().fold(0.0, f32::max)), (1025, 0.0));
        values[1024] = 1.0;
        assert_eq!(values[1024], 1.0);
        assert!(Memory::<f32>::new(None, 0).unwrap().is_empty());
        assert!(Memory::<f32>::new(None, usize::MAX / 2).is_none());
    }
}

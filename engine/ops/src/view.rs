//! Views of values, as the caller of an op has them: a slice of the host's memory, or a part of a device's buffer.

use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;

use brigade_quant::DeviceError;

use crate::derived::Derived;
use crate::place::Element;

/// Memory of a device. A device takes its own buffers back by their type ([`Any`]).
pub trait Buffer: Any + std::fmt::Debug + Send + Sync {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// A number that differs between any two buffers of a device that exist at the same time.
    fn address(&self) -> u64;

    /// Appends some of the bytes to `out`, after all that the device was told to do. After an error of the device their
    /// values mean nothing, and [`Accelerator::check`](crate::Accelerator::check) returns the error.
    ///
    /// # Errors
    /// There is no room for a copy.
    ///
    /// # Panics
    /// If the range ends beyond the buffer, or is not of whole values of four bytes.
    fn read(&self, bytes: Range<usize>, out: &mut Vec<u8>) -> Result<(), DeviceError>;

    /// Writes bytes from `at` on, after all that the device was told to do.
    ///
    /// # Panics
    /// If they end beyond the buffer.
    fn write(&mut self, at: usize, bytes: &[u8]);

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Values that an op reads.
#[derive(Clone, Copy)]
pub enum View<'a, T: Element> {
    /// In the host's memory.
    Host(&'a [T]),
    /// In the host's memory, where they stay as they are, so that a device may keep a copy.
    Lasting(&'a [T], &'a Derived),
    /// In a device's memory.
    Device(Part<'a>),
}

/// Values that an op writes, and may read before.
pub enum ViewMut<'a, T: Element> {
    /// In the host's memory.
    Host(&'a mut [T]),
    /// In a device's memory.
    Device(PartMut<'a>),
}

/// Bytes of a device's buffer.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    buffer: &'a dyn Buffer,
    first: usize,
    len: usize,
}

/// Bytes of a device's buffer, borrowed mutably: [`PartMut::of`] borrows the buffer, and two parts of it never overlap.
pub struct PartMut<'a> {
    part: Part<'a>,
    alone: PhantomData<&'a mut [u8]>,
}

impl<T: Element> std::fmt::Debug for View<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} values", self.len())
    }
}

impl<T: Element> View<'_, T> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(values) | Self::Lasting(values, _) => values.len(),
            Self::Device(part) => part.len / size_of::<T>(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether they lie with a device.
    pub fn is_with_device(&self) -> bool {
        matches!(self, Self::Device(_))
    }
}

impl<T: Element> ViewMut<'_, T> {
    /// Number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Device(part) => part.part.len / size_of::<T>(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether they lie with a device.
    pub fn is_with_device(&self) -> bool {
        matches!(self, Self::Device(_))
    }
}

impl<'a, T: Element> View<'a, T> {
    /// A range of the values.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(self, values: Range<usize>) -> Self {
        match self {
            Self::Host(all) | Self::Lasting(all, _) => Self::Host(&all[values]),
            Self::Device(part) => Self::Device(part.part(bytes_of::<T>(values))),
        }
    }
}

impl<'a, T: Element> ViewMut<'a, T> {
    /// The values, to be read.
    pub fn as_view(&self) -> View<'_, T> {
        match self {
            Self::Host(values) => View::Host(values),
            Self::Device(part) => View::Device(part.as_part()),
        }
    }

    /// All values, borrowed from this view for a while.
    pub fn again(&mut self) -> ViewMut<'_, T> {
        self.part(0..self.len())
    }

    /// A range of the values, borrowed from this view for a while.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(&mut self, values: Range<usize>) -> ViewMut<'_, T> {
        match self {
            Self::Host(all) => ViewMut::Host(&mut all[values]),
            Self::Device(part) => ViewMut::Device(part.part(bytes_of::<T>(values))),
        }
    }

    /// The values before and from `at` on.
    ///
    /// # Panics
    /// If there are fewer than `at`.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::Host(values) => {
                let (first, rest) = values.split_at_mut(at);
                (Self::Host(first), Self::Host(rest))
            }
            Self::Device(part) => {
                let (first, rest) = part.split_at(at * size_of::<T>());
                (Self::Device(first), Self::Device(rest))
            }
        }
    }
}

/// The range in bytes of a range of values.
fn bytes_of<T>(values: Range<usize>) -> Range<usize> {
    values.start * size_of::<T>()..values.end * size_of::<T>()
}

impl<'a> Part<'a> {
    /// Bytes `bytes` of a buffer.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn of(buffer: &'a dyn Buffer, bytes: Range<usize>) -> Self {
        assert!(
            bytes.start <= bytes.end && bytes.end <= buffer.len(),
            "bytes {bytes:?} of a buffer"
        );
        Self { buffer, first: bytes.start, len: bytes.len() }
    }

    /// The buffer, and the range of its bytes.
    pub fn place(&self) -> (&'a dyn Buffer, Range<usize>) {
        (self.buffer, self.first..self.first + self.len)
    }

    /// The buffer by its type, if it is of this one, and which of its bytes these are.
    pub fn within<B: Buffer>(&self) -> Option<(&'a B, Range<usize>)> {
        let (buffer, bytes) = self.place();
        let buffer: &dyn Any = buffer;
        Some((buffer.downcast_ref()?, bytes))
    }

    /// A range of the bytes.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(&self, bytes: Range<usize>) -> Self {
        assert!(
            bytes.start <= bytes.end && bytes.end <= self.len,
            "bytes {bytes:?} of {}",
            self.len
        );
        Self { buffer: self.buffer, first: self.first + bytes.start, len: bytes.len() }
    }
}

impl<'a> PartMut<'a> {
    /// Bytes `bytes` of a buffer.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn of(buffer: &'a mut dyn Buffer, bytes: Range<usize>) -> Self {
        Self { part: Part::of(buffer, bytes), alone: PhantomData }
    }

    /// The bytes, to be read.
    pub fn as_part(&self) -> Part<'_> {
        self.part
    }

    /// The bytes for the device that writes them, borrowed for all of `'a`.
    pub fn into_part(self) -> Part<'a> {
        self.part
    }

    /// A range of the bytes, borrowed from this part for a while.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn part(&mut self, bytes: Range<usize>) -> PartMut<'_> {
        PartMut { part: self.part.part(bytes), alone: PhantomData }
    }

    /// The bytes before and behind `at`.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn split_at(self, at: usize) -> (Self, Self) {
        let [first, rest] = [0..at, at..self.part.len].map(|bytes| self.part.part(bytes));
        (Self { part: first, alone: PhantomData }, Self { part: rest, alone: PhantomData })
    }
}

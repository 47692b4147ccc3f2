//! Parts of device memory, as ops take them.

use std::marker::PhantomData;
use std::ops::Range;

/// Bytes of device memory that an op reads.
#[derive(Clone, Copy, Debug)]
pub struct Span<'a> {
    address: u64,
    len: usize,
    of: PhantomData<&'a [u8]>,
}

/// Bytes of device memory that an op writes, and may read.
#[derive(Debug)]
pub struct SpanMut<'a> {
    address: u64,
    len: usize,
    of: PhantomData<&'a mut [u8]>,
}

impl<'a> Span<'a> {
    /// The caller has `len` bytes at `address` for as long as `'a`.
    pub(crate) fn new(address: u64, len: usize) -> Self {
        Self { address, len, of: PhantomData }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length in values of four bytes, f32 or u32.
    ///
    /// # Panics
    /// If the bytes are not whole, aligned values.
    pub fn values(&self) -> usize {
        values(self.address, self.len)
    }

    /// Some of the bytes.
    ///
    /// # Panics
    /// If the range ends beyond them.
    pub fn part(&self, range: Range<usize>) -> Span<'a> {
        let (address, len) = part(self.address, self.len, range);
        Span::new(address, len)
    }

    /// Address of the bytes on the device.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl<'a> SpanMut<'a> {
    /// The caller has `len` bytes at `address`, alone, for as long as `'a`.
    pub(crate) fn new(address: u64, len: usize) -> Self {
        Self { address, len, of: PhantomData }
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Length in values of four bytes, f32 or u32.
    ///
    /// # Panics
    /// If the bytes are not whole, aligned values.
    pub fn values(&self) -> usize {
        values(self.address, self.len)
    }

    /// Some of the bytes.
    ///
    /// # Panics
    /// If the range ends beyond them.
    pub fn part(&mut self, range: Range<usize>) -> SpanMut<'_> {
        let (address, len) = part(self.address, self.len, range);
        SpanMut::new(address, len)
    }

    /// The bytes before and after `at`.
    ///
    /// # Panics
    /// If there are fewer than `at`.
    pub fn split_at(self, at: usize) -> (SpanMut<'a>, SpanMut<'a>) {
        let (first, second) = (0..at, at..self.len);
        let (first, second) =
            (part(self.address, self.len, first), part(self.address, self.len, second));
        (SpanMut::new(first.0, first.1), SpanMut::new(second.0, second.1))
    }

    /// The same bytes, to be read.
    pub fn as_span(&self) -> Span<'_> {
        Span::new(self.address, self.len)
    }

    /// The same bytes, lent on.
    pub fn again(&mut self) -> SpanMut<'_> {
        SpanMut::new(self.address, self.len)
    }

    /// Address of the bytes on the device.
    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

fn values(address: u64, len: usize) -> usize {
    assert!(len.is_multiple_of(4) && address.is_multiple_of(4), "{len} bytes are no whole values");
    len / 4
}

fn part(address: u64, len: usize, range: Range<usize>) -> (u64, usize) {
    assert!(range.start <= range.end && range.end <= len, "bytes {range:?} of {len}");
    (address + range.start as u64, range.len())
}

//! Operands of ops in a GPU's memory.

use std::ops::Range;

use crate::device::Gpu;
use crate::memory::span::{Span, SpanMut};
use crate::transfer::buffer::GpuBuffer;
use brigade_ops::{Anywhere, Buffer, Carry, Element, Part, PartMut, Place, Vector, View, ViewMut};
use brigade_quant::DeviceError;

/// A GPU's memory: operands are spans of bytes.
#[derive(Clone, Copy, Debug)]
pub struct OnGpu;

impl Place for OnGpu {
    type Read<'a, T: Element> = Span<'a>;
    type Write<'a, T: Element> = SpanMut<'a>;

    fn len<T: Element>(values: &Span<'_>) -> usize {
        values.len() / size_of::<T>()
    }

    fn len_mut<T: Element>(values: &SpanMut<'_>) -> usize {
        values.len() / size_of::<T>()
    }
}

impl Buffer for GpuBuffer {
    fn len(&self) -> usize {
        GpuBuffer::len(self)
    }

    fn address(&self) -> u64 {
        GpuBuffer::address(self)
    }

    fn read(&self, bytes: Range<usize>, out: &mut Vec<u8>) -> Result<(), DeviceError> {
        Ok(GpuBuffer::read(self, bytes, out)?)
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        GpuBuffer::write(self, at, bytes);
    }
}

/// Takes operands to a GPU. Values that are read and lie elsewhere are copied there.
///
/// # Panics
/// If something that is to be written lies elsewhere, or the GPU has no memory for its copy of a vector.
pub struct ToGpu<'g> {
    gpu: &'g Gpu,
    /// Places among them, which the transfer queue fills.
    pub(crate) places: Vec<&'g GpuBuffer>,
}

impl<'g> ToGpu<'g> {
    /// Takes them to this one.
    pub fn of(gpu: &'g Gpu) -> Self {
        Self { gpu, places: Vec::new() }
    }

    fn note<'a: 'g>(&mut self, part: Part<'a>) {
        let buffer = part.within::<GpuBuffer>().map(|(buffer, _)| buffer);
        self.places.extend(buffer.filter(|buffer| buffer.is_place()));
    }
}

impl<'a: 'b, 'b> Carry<'a, 'b, Anywhere, OnGpu> for ToGpu<'b> {
    fn read<T: Element>(&mut self, values: View<'a, T>) -> Span<'b> {
        match values {
            View::Host(values) => self.gpu.upload(bytemuck::cast_slice(values)),
            View::Lasting(values, copies) => {
                let copy = || match self.gpu.keep_soon(bytemuck::cast_slice(values)) {
                    Ok(buffer) => buffer,
                    Err(error) => panic!("no memory for a vector of weights: {error}"),
                };
                copies.kept::<GpuBuffer>(copy).expect("values have the copy of one device").span()
            }
            View::Device(part) => {
                self.note(part);
                span_of(part)
            }
        }
    }

    fn write<T: Element>(&mut self, values: ViewMut<'a, T>) -> SpanMut<'b> {
        match values {
            ViewMut::Host(_) => panic!("an op on a GPU writes to its memory"),
            ViewMut::Device(part) => span_mut_of(part),
        }
    }
}

impl Gpu {
    /// The GPU's copy of a vector, always the same, for ops that are recorded from now on.
    ///
    /// # Panics
    /// If it has no memory left when it is first asked for.
    pub fn vector<'a>(&'a self, vector: &'a Vector) -> Span<'a> {
        ToGpu::of(self).read(vector.view())
    }
}

/// Span of a part of a GPU's buffer.
///
/// # Panics
/// If the buffer is none of a GPU.
pub fn span_of(part: Part<'_>) -> Span<'_> {
    let (buffer, bytes) = part.within::<GpuBuffer>().expect("what an op on a GPU takes lies there");
    buffer.span().part(bytes)
}

/// Span of a part of a GPU's buffer that is to be written. The part has no other user.
///
/// # Panics
/// If the buffer is none of a GPU.
pub fn span_mut_of(part: PartMut<'_>) -> SpanMut<'_> {
    let span = span_of(part.into_part());
    SpanMut::new(span.address(), span.len())
}

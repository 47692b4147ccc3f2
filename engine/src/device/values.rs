//! What ops take: values that are rows, vectors, or slices of the host's memory.

use brigade_gpu::{Gpu, Span, SpanMut};

use super::rows::{Rows, RowsMut, RowsPart};
use crate::kernels::Vector;

/// Why what lies with a GPU is not asked for in the host's memory.
const THERE: &str = "parts of rows with a GPU are written by its ops alone";

/// Values that an op reads.
pub trait Values {
    /// Them in the host's memory.
    fn on_host(&self) -> &[f32];

    /// Them with the GPU, where they are put if they do not lie there.
    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> Span<'a>;
}

/// Values that an op writes.
pub trait ValuesMut: Values {
    /// Them in the host's memory.
    fn on_host_mut(&mut self) -> &mut [f32];

    /// Them with a GPU, if they lie there.
    fn span_mut(&mut self) -> Option<SpanMut<'_>>;
}

/// Values of the host's memory, for ops that are told to run before the GPU is waited for.
fn uploaded<'a>(gpu: &'a Gpu, values: &[f32]) -> Span<'a> {
    gpu.upload(bytemuck::cast_slice(values))
}

impl Values for Rows {
    fn on_host(&self) -> &[f32] {
        self
    }

    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> Span<'a> {
        self.span().unwrap_or_else(|| uploaded(gpu, self))
    }
}

impl ValuesMut for Rows {
    fn on_host_mut(&mut self) -> &mut [f32] {
        self
    }

    fn span_mut(&mut self) -> Option<SpanMut<'_>> {
        Rows::span_mut(self)
    }
}

impl Values for RowsMut<'_> {
    fn on_host(&self) -> &[f32] {
        self.host().expect(THERE)
    }

    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> Span<'a> {
        self.span().unwrap_or_else(|| uploaded(gpu, self.on_host()))
    }
}

impl ValuesMut for RowsMut<'_> {
    fn on_host_mut(&mut self) -> &mut [f32] {
        self.host_mut().expect(THERE)
    }

    fn span_mut(&mut self) -> Option<SpanMut<'_>> {
        RowsMut::span_mut(self)
    }
}

impl Values for RowsPart<'_> {
    fn on_host(&self) -> &[f32] {
        RowsPart::on_host(self)
    }

    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> Span<'a> {
        self.span().unwrap_or_else(|| uploaded(gpu, self.on_host()))
    }
}

impl Values for Vector {
    fn on_host(&self) -> &[f32] {
        self
    }

    fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> Span<'a> {
        gpu.vector(self)
    }
}

/// Slices of the host's memory.
macro_rules! of_the_host {
    ($($values:ty),*) => {
        $(
            impl Values for $values {
                fn on_host(&self) -> &[f32] {
                    self
                }

                fn on_gpu<'a>(&'a self, gpu: &'a Gpu) -> Span<'a> {
                    uploaded(gpu, self)
                }
            }

            impl ValuesMut for $values {
                fn on_host_mut(&mut self) -> &mut [f32] {
                    self
                }

                fn span_mut(&mut self) -> Option<SpanMut<'_>> {
                    None
                }
            }
        )*
    };
}

of_the_host!([f32], Vec<f32>);

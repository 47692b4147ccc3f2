//! What ops take: values that are rows, vectors, or slices of the host's memory.

use super::rows::{Rows, RowsMut, RowsPart};
use crate::kernels::Vector;
use crate::ops::{View, ViewMut};

/// Why what lies with a device is not asked for in the host's memory.
const THERE: &str = "parts of rows with a device are written by its ops alone";

/// Values that an op reads.
pub trait Values {
    /// Them, wherever they lie.
    fn view(&self) -> View<'_, f32>;

    /// Them in the host's memory.
    fn on_host(&self) -> &[f32];
}

/// Values that an op writes.
pub trait ValuesMut: Values {
    /// Them, wherever they lie.
    fn view_mut(&mut self) -> ViewMut<'_, f32>;

    /// Them in the host's memory.
    fn on_host_mut(&mut self) -> &mut [f32];
}

impl Values for Rows {
    fn view(&self) -> View<'_, f32> {
        Rows::view(self)
    }

    fn on_host(&self) -> &[f32] {
        self
    }
}

impl ValuesMut for Rows {
    fn view_mut(&mut self) -> ViewMut<'_, f32> {
        Rows::view_mut(self)
    }

    fn on_host_mut(&mut self) -> &mut [f32] {
        self
    }
}

impl Values for RowsMut<'_> {
    fn view(&self) -> View<'_, f32> {
        RowsMut::view(self)
    }

    fn on_host(&self) -> &[f32] {
        self.host().expect(THERE)
    }
}

impl ValuesMut for RowsMut<'_> {
    fn view_mut(&mut self) -> ViewMut<'_, f32> {
        RowsMut::view_mut(self)
    }

    fn on_host_mut(&mut self) -> &mut [f32] {
        self.host_mut().expect(THERE)
    }
}

impl Values for RowsPart<'_> {
    fn view(&self) -> View<'_, f32> {
        RowsPart::view(self)
    }

    fn on_host(&self) -> &[f32] {
        RowsPart::on_host(self)
    }
}

impl Values for Vector {
    fn view(&self) -> View<'_, f32> {
        Vector::view(self)
    }

    fn on_host(&self) -> &[f32] {
        self
    }
}

/// Slices of the host's memory.
macro_rules! of_the_host {
    ($($values:ty),*) => {
        $(
            impl Values for $values {
                fn view(&self) -> View<'_, f32> {
                    View::Host(self)
                }

                fn on_host(&self) -> &[f32] {
                    self
                }
            }

            impl ValuesMut for $values {
                fn view_mut(&mut self) -> ViewMut<'_, f32> {
                    ViewMut::Host(self)
                }

                fn on_host_mut(&mut self) -> &mut [f32] {
                    self
                }
            }
        )*
    };
}

of_the_host!([f32], Vec<f32>);

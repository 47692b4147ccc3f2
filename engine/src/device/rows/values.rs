//! Operands of ops: values that are rows, vectors, or slices of the host's memory.

use super::{Rows, RowsMut, RowsPart};
use crate::kernels::Vector;
use crate::ops::{View, ViewMut};

/// Values that an op reads.
pub trait Values {
    /// The values, wherever they lie.
    fn view(&self) -> View<'_, f32>;
}

/// Values that an op writes.
pub trait ValuesMut: Values {
    /// The values, wherever they lie.
    fn view_mut(&mut self) -> ViewMut<'_, f32>;
}

impl Values for Rows {
    fn view(&self) -> View<'_, f32> {
        Rows::view(self)
    }
}

impl ValuesMut for Rows {
    fn view_mut(&mut self) -> ViewMut<'_, f32> {
        Rows::view_mut(self)
    }
}

impl Values for RowsMut<'_> {
    fn view(&self) -> View<'_, f32> {
        RowsMut::view(self)
    }
}

impl ValuesMut for RowsMut<'_> {
    fn view_mut(&mut self) -> ViewMut<'_, f32> {
        RowsMut::view_mut(self)
    }
}

impl Values for RowsPart<'_> {
    fn view(&self) -> View<'_, f32> {
        RowsPart::view(self)
    }
}

impl Values for Vector {
    fn view(&self) -> View<'_, f32> {
        Vector::view(self)
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
            }

            impl ValuesMut for $values {
                fn view_mut(&mut self) -> ViewMut<'_, f32> {
                    ViewMut::Host(self)
                }
            }
        )*
    };
}

of_the_host!([f32], Vec<f32>);

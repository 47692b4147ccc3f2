//! What ops take: values that are rows, vectors, or slices of the host's memory.

use super::rows::{Rows, RowsMut, RowsPart};
use crate::kernels::Vector;

/// Values that an op reads.
pub trait Values {
    /// Them in the host's memory.
    fn on_host(&self) -> &[f32];
}

/// Values that an op writes.
pub trait ValuesMut: Values {
    /// Them in the host's memory.
    fn on_host_mut(&mut self) -> &mut [f32];
}

impl Values for Rows {
    fn on_host(&self) -> &[f32] {
        self
    }
}

impl ValuesMut for Rows {
    fn on_host_mut(&mut self) -> &mut [f32] {
        self
    }
}

impl Values for RowsMut<'_> {
    fn on_host(&self) -> &[f32] {
        self.values()
    }
}

impl ValuesMut for RowsMut<'_> {
    fn on_host_mut(&mut self) -> &mut [f32] {
        self.values_mut()
    }
}

impl Values for RowsPart<'_> {
    fn on_host(&self) -> &[f32] {
        self.values()
    }
}

impl Values for Vector {
    fn on_host(&self) -> &[f32] {
        self
    }
}

impl Values for [f32] {
    fn on_host(&self) -> &[f32] {
        self
    }
}

impl ValuesMut for [f32] {
    fn on_host_mut(&mut self) -> &mut [f32] {
        self
    }
}

impl Values for Vec<f32> {
    fn on_host(&self) -> &[f32] {
        self
    }
}

impl ValuesMut for Vec<f32> {
    fn on_host_mut(&mut self) -> &mut [f32] {
        self
    }
}

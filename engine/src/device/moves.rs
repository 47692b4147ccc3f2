//! Values that change their place, and rotations.

use super::{Device, Values, ValuesMut};
use crate::kernels::{HeadColumns, RopeTable};

impl Device {
    /// [`Compute::heads_apart`](crate::kernels::Compute::heads_apart).
    pub fn heads_apart(
        &self,
        from: &(impl Values + ?Sized),
        n_head: usize,
        columns: HeadColumns,
        to: &mut (impl ValuesMut + ?Sized),
    ) {
        self.compute.heads_apart(from.on_host(), n_head, columns, to.on_host_mut());
    }

    /// [`Compute::heads_together`](crate::kernels::Compute::heads_together).
    pub fn heads_together(
        &self,
        from: &(impl Values + ?Sized),
        n_head: usize,
        columns: HeadColumns,
        to: &mut (impl ValuesMut + ?Sized),
    ) {
        self.compute.heads_together(from.on_host(), n_head, columns, to.on_host_mut());
    }

    /// Rotates heads of `x`, `[n, n_head * head_dim]`, by the positions of `table`.
    pub fn rope(&self, x: &mut (impl ValuesMut + ?Sized), head_dim: usize, table: &RopeTable) {
        self.compute.rope(x.on_host_mut(), head_dim, table);
    }
}

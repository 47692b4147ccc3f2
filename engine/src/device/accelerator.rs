//! The device that a stage computes on, where that is not the host. All that lies with it has a handle.

use std::ops::Deref;
use std::sync::Arc;

use super::{give_up, with_room};
use crate::kernels::DeviceError;
use crate::ops::{Accelerator, Anywhere, Buffer, Op, Part, PartMut, Purpose, ToFetch};

/// A handle of a device, which is cheap to clone.
#[derive(Clone)]
pub struct There(Arc<dyn Accelerator>);

impl There {
    /// A handle of an open device.
    pub fn new(device: Arc<dyn Accelerator>) -> Self {
        Self(device)
    }

    /// Whether both are the same open device.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits for all that it was told to do.
    ///
    /// # Errors
    /// The device failed, now or before: what it computed is lost.
    pub fn finish(&self) -> Result<(), DeviceError> {
        self.milestone().wait()
    }

    /// Memory for `what`, for as long as a ubatch.
    ///
    /// # Panics
    /// If it has not that much. The stage ends with this as its reason.
    pub(super) fn room(&self, what: &str, len: usize, purpose: Purpose) -> Box<dyn Buffer> {
        with_room(what, self.alloc(len, purpose))
    }

    /// Begins with an op that every device has, or that it is known to support.
    ///
    /// # Panics
    /// If it has no room for it. The stage ends with this as its reason.
    pub(super) fn do_now<'a>(&self, op: impl Into<Op<'a, Anywhere>>) {
        let op = op.into();
        let name = op.name();
        with_room(name, self.run(op));
    }

    /// Copies of these for the host, one behind the other.
    ///
    /// # Panics
    /// If there is no room for them. The stage ends with this as its reason.
    pub(super) fn bring(&self, what: &str, parts: &[Part<'_>]) -> Box<dyn crate::ops::Fetch> {
        self.fetch(ToFetch::Copies(parts)).unwrap_or_else(|error| give_up(what, &error))
    }
}

impl Deref for There {
    type Target = dyn Accelerator;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl std::fmt::Debug for There {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("There").field(&self.facts()).finish()
    }
}

/// The first `len` bytes of a buffer.
pub(super) fn first(buffer: &dyn Buffer, len: usize) -> Part<'_> {
    Part::of(buffer, 0..len)
}

/// The first `len` bytes of a buffer, to be written.
pub(super) fn first_mut(buffer: &mut dyn Buffer, len: usize) -> PartMut<'_> {
    PartMut::of(buffer, 0..len)
}

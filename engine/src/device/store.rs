//! Where the values of rows lie: with the host, or with a device.

use super::there::There;
use crate::ops::{Buffer, Purpose};

/// Values in f32, stale at first.
pub(super) enum Store {
    /// In the host's memory.
    Host(Vec<f32>),
    /// In a device's. The host may look at it too, once the device is done with what it was told to do.
    There(Box<dyn Buffer>),
}

impl Default for Store {
    fn default() -> Self {
        Self::Host(Vec::new())
    }
}

impl Store {
    /// Room for `len` values.
    ///
    /// # Panics
    /// If the device has not that much memory. The stage ends with this as its reason.
    pub(super) fn new(there: Option<&There>, len: usize) -> Self {
        match there {
            None => Self::Host(vec![0.0; len]),
            Some(there) => {
                let bytes = len * size_of::<f32>();
                Self::There(there.room("the rows of a ubatch", bytes, Purpose::Activations))
            }
        }
    }

    /// How many values there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::There(buffer) => buffer.len() / size_of::<f32>(),
        }
    }

    /// Where they lie with a device, whose commands name the place; all places of the host are one.
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Host(_) => 0,
            Self::There(buffer) => buffer.address(),
        }
    }

    /// The values, for the host.
    pub(super) fn on_host(&self) -> &[f32] {
        match self {
            Self::Host(values) => values,
            Self::There(buffer) => bytemuck::cast_slice(buffer.on_host()),
        }
    }

    /// The values, for the host to write.
    pub(super) fn on_host_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Host(values) => values,
            Self::There(buffer) => bytemuck::cast_slice_mut(buffer.on_host_mut()),
        }
    }
}

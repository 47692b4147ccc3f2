//! Storage of rows' values: with the host, or with a device.

use crate::device::accelerator::There;
use crate::device::mapping::{HUGE_FROM, Mapping};
use crate::ops::{Buffer, Purpose};

/// Message of a panic: values that lie with a device were read as the host's.
pub(super) const THERE: &str =
    "values with a device are read and written by calls that wait for it";

/// Values in f32, stale at first.
pub(super) enum Store {
    /// In the host's memory.
    Host(Vec<f32>),
    /// The same, in huge pages: those of large ubatches.
    Mapped(Mapping),
    /// In a device's, which the host does not look at.
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
        let bytes = len * size_of::<f32>();
        match there {
            None if bytes >= HUGE_FROM => match Mapping::new(bytes) {
                Ok(mapping) => Self::Mapped(mapping),
                Err(_) => Self::Host(vec![0.0; len]),
            },
            None => Self::Host(vec![0.0; len]),
            Some(there) => {
                Self::There(there.room("the rows of a ubatch", bytes, Purpose::Activations))
            }
        }
    }

    /// Number of values.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Mapped(mapping) => mapping.len() / size_of::<f32>(),
            Self::There(buffer) => buffer.len() / size_of::<f32>(),
        }
    }

    /// Address of the values with a device, as its commands name it. All values with the host have the same.
    pub(super) fn address(&self) -> u64 {
        match self {
            Self::Host(_) | Self::Mapped(_) => 0,
            Self::There(buffer) => buffer.address(),
        }
    }

    /// The values, which lie with the host.
    ///
    /// # Panics
    /// If they lie with a device.
    pub(super) fn host(&self) -> &[f32] {
        match self {
            Self::Host(values) => values,
            Self::Mapped(mapping) => bytemuck::cast_slice(mapping),
            Self::There(_) => panic!("{THERE}"),
        }
    }

    /// The values, which lie with the host, to be written.
    ///
    /// # Panics
    /// If they lie with a device.
    pub(super) fn host_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Host(values) => values,
            Self::Mapped(mapping) => bytemuck::cast_slice_mut(mapping),
            Self::There(_) => panic!("{THERE}"),
        }
    }
}

/// A GPU's bytes, which the host sees.
#[cfg(test)]
pub(super) fn seen(buffer: &dyn Buffer) -> &[u8] {
    let buffer: &dyn std::any::Any = buffer;
    buffer.downcast_ref::<brigade_gpu::GpuBuffer>().expect("tests have no other devices").bytes()
}

/// A GPU's bytes, which the host sees, to be written.
#[cfg(test)]
pub(super) fn seen_mut(buffer: &mut dyn Buffer) -> &mut [u8] {
    let buffer: &mut dyn std::any::Any = buffer;
    buffer
        .downcast_mut::<brigade_gpu::GpuBuffer>()
        .expect("tests have no other devices")
        .bytes_mut()
}

#[cfg(test)]
impl Store {
    /// The values, wherever they lie.
    pub(super) fn on_host(&self) -> &[f32] {
        match self {
            Self::There(buffer) => bytemuck::cast_slice(seen(&**buffer)),
            host => host.host(),
        }
    }

    /// The values, wherever they lie, to be written.
    pub(super) fn on_host_mut(&mut self) -> &mut [f32] {
        match self {
            Self::There(buffer) => bytemuck::cast_slice_mut(seen_mut(&mut **buffer)),
            host => host.host_mut(),
        }
    }
}

//! Lists of an index's choice, in the memory where attention reads them.

use crate::device::Device;
use crate::device::accelerator::{first, first_mut};
use crate::ops::{Buffer, Purpose, View, ViewMut};

/// Lists of whole numbers, one after the other, all as long: those of blocks or of entries.
pub struct Lists(Place);

enum Place {
    Host(Vec<u32>),
    There(Box<dyn Buffer>),
}

impl Lists {
    /// The numbers, as ops write them.
    pub fn view_mut(&mut self) -> ViewMut<'_, u32> {
        match &mut self.0 {
            Place::Host(numbers) => ViewMut::Host(numbers),
            Place::There(buffer) => {
                let len = buffer.len();
                ViewMut::Device(first_mut(&mut **buffer, len))
            }
        }
    }

    /// The numbers, as ops read them.
    pub fn view(&self) -> View<'_, u32> {
        match &self.0 {
            Place::Host(numbers) => View::Host(numbers),
            Place::There(buffer) => View::Device(first(&**buffer, buffer.len())),
        }
    }
}

impl Device {
    /// Room for `len` numbers, where ops here write them.
    ///
    /// # Panics
    /// If a device has no memory for them.
    pub fn lists(&self, len: usize) -> Lists {
        let Some(there) = &self.there else { return Lists(Place::Host(vec![0; len])) };
        let bytes = len * size_of::<u32>();
        Lists(Place::There(there.room("what an index chooses", bytes, Purpose::Activations)))
    }
}

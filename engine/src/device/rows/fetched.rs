//! Values for the host: brought to its memory where they lie with a device. It reads that at the speed of memory, and a card's own
//! only word by word.

use std::ops::Deref;

use crate::device::Rows;
use crate::device::accelerator::first;
use crate::ops::{Fetch, ToFetch};

/// Values that the host reads. Reading them waits for the device, and only for the ops that it was told before they
/// were fetched.
pub struct Fetched(Place);

enum Place {
    Here(Box<Rows>),
    Brought(Box<dyn Fetch>),
}

impl Rows {
    /// The values, for the host. They are on their way at once; their memory with a device is free for what comes next. Where there
    /// is no room for a copy on its way, this waits for the device and reads them.
    ///
    /// # Panics
    /// If there is no room to read them either, with [`GaveUp`](crate::device::GaveUp).
    pub fn fetched(self) -> Fetched {
        let brought = self.place_there().and_then(|(there, buffer)| {
            let all = first(buffer, self.len() * size_of::<f32>());
            there.fetch(ToFetch::Copies(&[all])).ok()
        });
        Fetched(match brought {
            Some(fetch) => Place::Brought(fetch),
            None if self.is_there() => {
                Place::Here(Box::new(Rows::new(self.read().into_owned(), self.cols())))
            }
            None => Place::Here(Box::new(self)),
        })
    }
}

impl Fetched {
    /// The values, to be kept.
    pub fn into_vec(self) -> Vec<f32> {
        match self.0 {
            Place::Here(rows) => rows.into_vec(),
            Place::Brought(fetch) => bytemuck::cast_slice(fetch.bytes()).to_vec(),
        }
    }
}

impl Default for Fetched {
    fn default() -> Self {
        Self(Place::Here(Box::default()))
    }
}

impl Deref for Fetched {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match &self.0 {
            Place::Here(rows) => rows.host(),
            Place::Brought(fetch) => bytemuck::cast_slice(fetch.bytes()),
        }
    }
}

//! Values for the host: brought to its memory where they lie with a device. It reads that at the speed of memory, and a card's own
//! only word by word.

use std::ops::Deref;

use super::Rows;
use super::there::first;
use crate::ops::{Fetch, ToFetch};

/// Values that the host reads. Whoever does waits for the device, and only for what it was told before they were fetched.
pub struct Fetched(Place);

enum Place {
    Here(Box<Rows>),
    Brought(Box<dyn Fetch>),
}

impl Rows {
    /// The values, for the host. They are on their way at once; their memory with a device is free for what comes next.
    pub fn fetched(self) -> Fetched {
        let brought = self.place_there().and_then(|(there, buffer)| {
            let all = first(buffer, self.len() * size_of::<f32>());
            there.fetch(ToFetch::Copies(&[all])).ok()
        });
        Fetched(brought.map_or_else(|| Place::Here(Box::new(self)), Place::Brought))
    }
}

impl Fetched {
    /// The values, to be kept.
    pub fn into_vec(self) -> Vec<f32> {
        match self.0 {
            Place::Here(rows) if rows.is_there() => rows.to_vec(),
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
            Place::Here(rows) => rows,
            Place::Brought(fetch) => bytemuck::cast_slice(fetch.bytes()),
        }
    }
}

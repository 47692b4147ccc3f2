//! Places with a device for matrices that come from the host's memory and go again.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::ops::Buffer;

/// Free places, by their length in bytes, the one that was free for the longest time first.
type Free = HashMap<usize, VecDeque<Arc<dyn Buffer>>>;

/// Places for matrices in a device's memory.
#[derive(Default)]
pub(super) struct Places(Mutex<Free>);

impl Places {
    /// Looks at the free places, takes some, or gives some back.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Free) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

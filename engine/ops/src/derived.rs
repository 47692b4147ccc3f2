//! What a device makes of values for itself, such as a copy or another form of them, and keeps for as long as they stay the same.

use std::any::Any;
use std::sync::OnceLock;

/// What a device keeps of some values. Who changes them puts an empty one in its place.
#[derive(Debug, Default)]
pub struct Derived(OnceLock<Box<dyn Any + Send + Sync>>);

impl Derived {
    /// What is kept, always the same: `make` makes it when it is first asked for. `None` where another kind of device keeps
    /// something.
    #[inline]
    pub fn kept<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(make())).downcast_ref()
    }
}

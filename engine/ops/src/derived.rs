//! Other forms of values that a device makes and keeps, such as a copy. They are valid for as long as the values stay
//! the same.

use std::any::Any;
use std::sync::OnceLock;

/// A device's derived form of some values, once it is made. A change of the values must replace it by an empty one.
#[derive(Debug, Default)]
pub struct Derived(OnceLock<Box<dyn Any + Send + Sync>>);

impl Derived {
    /// The derived form, which `make` makes on the first call. `None` where it is of another type: another kind of
    /// device made it.
    #[inline]
    pub fn kept<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.get_or_init(|| Box::new(make())).downcast_ref()
    }
}

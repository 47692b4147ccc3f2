//! Values that ops read and nobody changes: weights of norms, biases, tables. A device may keep a copy of its own of them.

use std::any::Any;
use std::ops::Deref;
use std::sync::OnceLock;

use crate::view::View;

/// Values in f32 that stay as they are.
#[derive(Debug, Default)]
pub struct Vector {
    values: Vec<f32>,
    copies: Copies,
}

/// What a device keeps of values that stay as they are.
#[derive(Debug, Default)]
pub struct Copies(OnceLock<Box<dyn Any + Send + Sync>>);

impl Copies {
    /// What a device keeps of the values, always the same: `make` makes it when it is first asked for.
    ///
    /// # Panics
    /// If it was asked for as another type before.
    pub fn kept<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        let kept = self.0.get_or_init(|| Box::new(make()));
        kept.downcast_ref().expect("values have the copy of one kind of device")
    }
}

impl Vector {
    /// The values, to be made into others.
    #[inline]
    pub fn into_vec(self) -> Vec<f32> {
        self.values
    }

    /// The values, as ops take them.
    #[inline]
    pub fn view(&self) -> View<'_, f32> {
        View::Lasting(&self.values, &self.copies)
    }
}

impl Clone for Vector {
    fn clone(&self) -> Self {
        self.values.clone().into()
    }
}

impl From<Vec<f32>> for Vector {
    fn from(values: Vec<f32>) -> Self {
        Self { values, copies: Copies::default() }
    }
}

impl FromIterator<f32> for Vector {
    fn from_iter<I: IntoIterator<Item = f32>>(values: I) -> Self {
        Vec::from_iter(values).into()
    }
}

impl<'a> IntoIterator for &'a Vector {
    type Item = &'a f32;
    type IntoIter = std::slice::Iter<'a, f32>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.iter()
    }
}

impl IntoIterator for Vector {
    type Item = f32;
    type IntoIter = std::vec::IntoIter<f32>;

    fn into_iter(self) -> Self::IntoIter {
        self.values.into_iter()
    }
}

impl Deref for Vector {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values
    }
}

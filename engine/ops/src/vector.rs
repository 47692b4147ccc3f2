//! Constant values that ops read: weights of norms, biases, tables. A device may keep a copy of its own of them.

use std::ops::Deref;

use crate::derived::Derived;
use crate::view::View;

/// Values in f32 that stay as they are.
#[derive(Debug, Default)]
pub struct Vector {
    values: Vec<f32>,
    copies: Derived,
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
        Self { values, copies: Derived::default() }
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

//! Values that ops read and nobody changes: weights of norms, biases, tables. A GPU keeps a copy of its own of them.

use std::ops::Deref;
use std::sync::OnceLock;

use brigade_gpu::{Gpu, GpuBuffer, Span};

/// Values in f32 that stay as they are.
#[derive(Debug, Default)]
pub struct Vector {
    values: Vec<f32>,
    with_gpu: OnceLock<Box<GpuBuffer>>,
}

impl Vector {
    /// The values, to be made into others.
    pub fn into_vec(self) -> Vec<f32> {
        self.values
    }

    /// The values with a GPU, always the same one, for ops that are recorded from now on. It gets them when they are first asked
    /// for.
    ///
    /// # Panics
    /// If it has no memory left.
    pub fn on_gpu<'a>(&'a self, gpu: &Gpu) -> Span<'a> {
        let copy = || match gpu.keep_soon(bytemuck::cast_slice(&self.values)) {
            Ok(buffer) => Box::new(buffer),
            Err(error) => panic!("no memory for a vector of weights: {error}"),
        };
        self.with_gpu.get_or_init(copy).span()
    }
}

impl Clone for Vector {
    fn clone(&self) -> Self {
        self.values.clone().into()
    }
}

impl From<Vec<f32>> for Vector {
    fn from(values: Vec<f32>) -> Self {
        Self { values, with_gpu: OnceLock::new() }
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

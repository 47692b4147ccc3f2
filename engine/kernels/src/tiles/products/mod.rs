//! Tiles of matrix products, packed weights, and activations as products read them.

pub(crate) mod activations;
pub(crate) mod column_slices;
pub(crate) mod matmul;
pub(crate) mod pack;

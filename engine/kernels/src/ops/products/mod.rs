//! Matrix products: weights packed when they are loaded, activations in the form that products read, the products.

pub(crate) mod activations;
pub(crate) mod column_slices;
pub(crate) mod matmul;
pub(crate) mod pack;

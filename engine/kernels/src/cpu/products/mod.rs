//! Matrix products: few and many rows, float and quantised weights, and activations in the form that they read.

pub(crate) mod activations;
pub(crate) mod arithmetic;
pub(crate) mod matmul;
pub(super) mod matmul_choice;
pub(crate) mod matmul_f32;
pub(crate) mod matmul_few;
pub(crate) mod matmul_many;
pub(crate) mod matmul_pairs;
pub(crate) mod matmul_q8;

//! Tests of products.

mod matmul;
mod pairs;

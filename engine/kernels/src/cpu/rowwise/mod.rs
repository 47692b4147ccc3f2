//! Functions of single values and rows: elementwise ops, activations of FFNs, softmax and norms.

pub(crate) mod bounded_gate;
pub(crate) mod elementwise;
pub(crate) mod gates;
pub(crate) mod norm;

//! The tiles that kernels see of ops, and operands that `brigade_ops` does not have yet. Nothing here runs an op, and nothing
//! here knows a table or its threads: kernels stand on these types, and ops on both.

pub(crate) mod attention;
pub(crate) mod gates;
pub(crate) mod out_rows;
pub(crate) mod products;
pub(crate) mod scan;

//! The tiles that kernels see of ops, and operands that `brigade_ops` does not have yet. Nothing here runs an op, and nothing
//! here knows a table or its threads: kernels stand on these types, and ops on both.
pub(crate) mod act;
pub(crate) mod attention;
pub(crate) mod block_index;
pub(crate) mod chosen_blocks;
pub(crate) mod column_slices;
pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod depth_attention;
pub(crate) mod gates;
pub(crate) mod index;
pub(crate) mod kv;
pub(crate) mod mamba;
pub(crate) mod matmul;
pub(crate) mod out_rows;
pub(crate) mod pack;
pub(crate) mod pooling;
pub(crate) mod rope;
pub(crate) mod scan;
pub(crate) mod ssd;
pub(crate) mod wkv6;
pub(crate) mod wkv7;

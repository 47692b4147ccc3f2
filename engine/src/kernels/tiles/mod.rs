//! Operands of ops, and the tiles that kernels see of them. Nothing here runs an op, and nothing here knows a table or
//! its threads: kernels stand on these types, and ops on both.
pub(in crate::kernels) mod act;
pub(in crate::kernels) mod attention;
pub(in crate::kernels) mod block_index;
pub(in crate::kernels) mod bounded_gate;
pub(in crate::kernels) mod chosen_blocks;
pub(in crate::kernels) mod column_slices;
pub(in crate::kernels) mod conv;
pub(in crate::kernels) mod delta;
pub(in crate::kernels) mod depth_attention;
pub(in crate::kernels) mod gates;
pub(in crate::kernels) mod index;
pub(in crate::kernels) mod kv;
pub(in crate::kernels) mod mamba;
pub(in crate::kernels) mod matmul;
pub(in crate::kernels) mod out_rows;
pub(in crate::kernels) mod pack;
pub(in crate::kernels) mod pooling;
pub(in crate::kernels) mod rope;
pub(in crate::kernels) mod scan;
pub(in crate::kernels) mod ssd;
pub(in crate::kernels) mod wkv6;
pub(in crate::kernels) mod wkv7;

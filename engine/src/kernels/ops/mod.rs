//! What blocks call: methods of [`Compute`](super::compute::Compute), a file for each kind. An op checks its shapes (a
//! mismatch is a bug of the caller and panics), cuts its work into tiles for the threads, and leaves the arithmetic to the
//! table.
pub(in crate::kernels) mod act;
pub(in crate::kernels) mod attend_entries;
pub(in crate::kernels) mod attention;
pub(in crate::kernels) mod block_index;
pub(in crate::kernels) mod bounded_gate;
pub(in crate::kernels) mod choose_entries;
pub(in crate::kernels) mod chosen;
pub(in crate::kernels) mod column_slices;
pub(in crate::kernels) mod conv;
pub(in crate::kernels) mod delta;
pub(in crate::kernels) mod depth_attention;
pub(in crate::kernels) mod dilated;
pub(in crate::kernels) mod elementwise;
pub(in crate::kernels) mod entries;
pub(in crate::kernels) mod experts;
pub(in crate::kernels) mod gates;
pub(in crate::kernels) mod head_columns;
pub(in crate::kernels) mod index;
pub(in crate::kernels) mod kv;
pub(in crate::kernels) mod mamba;
pub(in crate::kernels) mod matmul;
pub(in crate::kernels) mod mean_index;
pub(in crate::kernels) mod pack;
pub(in crate::kernels) mod pooling;
pub(in crate::kernels) mod rope;
pub(in crate::kernels) mod scan;
pub(in crate::kernels) mod ssd;
pub(in crate::kernels) mod streams;
pub(in crate::kernels) mod weigh;
pub(in crate::kernels) mod wide;
pub(in crate::kernels) mod wkv6;
pub(in crate::kernels) mod wkv7;

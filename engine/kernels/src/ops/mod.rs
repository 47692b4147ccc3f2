//! What blocks call: methods of [`Compute`](super::compute::Compute), a file for each kind. An op checks its shapes (a
//! mismatch is a bug of the caller and panics), cuts its work into tiles for the threads, and leaves the arithmetic to the
//! table.
pub(crate) mod act;
pub(crate) mod attend_entries;
pub(crate) mod attention;
pub(crate) mod block_index;
pub(crate) mod bounded_gate;
pub(crate) mod choose_entries;
pub(crate) mod chosen;
pub(crate) mod column_slices;
pub(crate) mod conv;
pub(crate) mod delta;
pub(crate) mod depth_attention;
pub(crate) mod dilated;
pub(crate) mod elementwise;
pub(crate) mod entries;
pub(crate) mod expert_job;
pub(crate) mod experts;
pub(crate) mod gates;
pub(crate) mod head_columns;
pub(crate) mod index;
pub(crate) mod kv;
pub(crate) mod mamba;
pub(crate) mod matmul;
pub(crate) mod mean_index;
pub(crate) mod pack;
pub(crate) mod pooling;
pub(crate) mod rope;
pub(crate) mod rowwise;
pub(crate) mod run;
pub(crate) mod scan;
pub(crate) mod ssd;
pub(crate) mod streams;
pub(crate) mod weigh;
pub(crate) mod wide;
pub(crate) mod wkv6;
pub(crate) mod wkv7;

//! The definition of every op, in short loops, mostly in f64. All kernels are compared with it.

pub(super) mod attention;
pub(super) mod block_index;
pub(super) mod chunked;
pub(super) mod conv;
pub(super) mod delta;
pub(super) mod depth_attention;
pub(super) mod index;
pub(super) mod kv;
pub(super) mod mamba;
pub(super) mod matmul;
pub(super) mod mean_index;
pub(super) mod ops;
pub(super) mod pooling;
pub(super) mod ssd;
pub(super) mod wkv6;
pub(super) mod wkv7;

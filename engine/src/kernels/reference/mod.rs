//! What every op means, in loops that can be read at a glance. Tests compare all kernels with it. The table
//! over its lanes runs on any machine.

#[cfg(test)]
pub(super) mod attention;
#[cfg(test)]
pub(super) mod block_index;
#[cfg(test)]
pub(super) mod chunked;
#[cfg(test)]
pub(super) mod conv;
#[cfg(test)]
pub(super) mod delta;
#[cfg(test)]
pub(super) mod depth_attention;
#[cfg(test)]
pub(super) mod index;
#[cfg(test)]
pub(super) mod kv;
pub(super) mod lanes;
#[cfg(test)]
pub(super) mod mamba;
#[cfg(test)]
pub(super) mod matmul;
#[cfg(test)]
pub(super) mod mean_index;
#[cfg(test)]
pub(super) mod ops;
#[cfg(test)]
pub(super) mod pooling;
#[cfg(test)]
pub(super) mod ssd;
#[cfg(test)]
pub(super) mod wkv6;
#[cfg(test)]
pub(super) mod wkv7;

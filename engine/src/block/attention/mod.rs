//! Softmax attention in its kinds: grouped queries, latent attention, attention to entries, and the indexes that choose
//! what is attended to.

pub(super) mod block_index;
pub(super) mod compressed;
pub(super) mod compressor;
pub(super) mod entry_maker;
pub(super) mod gqa;
pub(super) mod index;
pub(super) mod mla;
pub(super) mod qkv;

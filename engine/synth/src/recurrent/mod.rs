//! Synthetic models with recurrent layers: Mamba, short convolutions, the delta rule, RWKV.

pub(super) mod delta;
pub(super) mod hybrids;
pub(super) mod mamba2;
pub(super) mod rwkv6;
pub(super) mod rwkv7;

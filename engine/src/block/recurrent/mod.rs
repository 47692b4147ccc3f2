//! Mixers whose state has a fixed size: Mamba, delta rules, lightning attention, short convolutions, and what RWKV mixes.

pub(super) mod channel_mix;
pub(super) mod delta_net;
pub(super) mod kda;
pub(super) mod lightning;
pub(super) mod mamba;
pub(super) mod mamba2;
pub(super) mod short_conv;
pub(super) mod time_mix;
pub(super) mod time_mix6;
pub(super) mod token_shift;

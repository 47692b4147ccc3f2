//! The tokens that the simulated stages draw.
//!
//! A made-up token is a hash of all tokens before it. So a client that knows its prompt can tell whether the line was
//! fed the right tokens in the right order, through the right adapters. With a companion it is a hash of both sequences'
//! tokens.

use brigade_engine::batch::AdapterUse;

use super::rng::mix;

/// The token that ends a sequence.
pub(super) const STOP_TOKEN: u32 = 0;

/// Made-up tokens are `1..VOCAB`, or [`STOP_TOKEN`] once in a workload's `stop_every`.
pub(super) const VOCAB: u64 = 32_000;

/// The token after `tokens`, whose rows passed through `adapters`.
pub(super) fn next_token(tokens: &[u32], adapters: &[AdapterUse], stop_every: u64) -> u32 {
    let of_adapters =
        adapters.iter().fold(0x5eed, |hash, used| mix(hash ^ u64::from(used.adapter)));
    let hash = tokens.iter().fold(of_adapters, |hash, &t| mix(hash ^ u64::from(t)));
    if stop_every > 0 && mix(hash).is_multiple_of(stop_every) {
        return STOP_TOKEN;
    }
    (1 + hash % (VOCAB - 1)) as u32
}
